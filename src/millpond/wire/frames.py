"""Splits a byte stream into length-prefixed frames, with few copies and without I/O."""

from __future__ import annotations

import struct
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TypeAlias

from millpond.base.errors import MalformedMessage

_PREFIX = struct.Struct(">i")
_PREFIX_BYTES = _PREFIX.size

# Buffers are zeroed on allocation, so they grow with the received data: four hostile bytes cannot claim a large
# frame.
_ROOM_BYTES_FIRST = 64 << 10
_ROOM_GROWTH = 4

_ROOM_STEP_BYTES = 256 << 10

MAPPED_FROM_BYTES = 4 << 20
"""Once a frame needs a buffer of this size, all of it is memory-mapped: the kernel zeroes pages as bytes arrive.
Zeroing or moving a bytearray of 30 MB would block the loop for 20 ms and more."""

Room: TypeAlias = "bytearray | mmap"


class SpareRoom:
    """Buffers of large frames that have been processed, kept for the next ones.

    New memory is the largest cost of a large frame: the kernel allocates and frees its pages one by one. All buffers
    together have at most `bytes_max`.
    """

    __slots__ = ("_bytes_max", "_kept_bytes", "_spares")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept_bytes = 0
        self._spares: list[Room] = []

    def take(self, length: int) -> Room | None:
        """An unused buffer of at least this many bytes, if there is one."""
        for index, spare in enumerate(self._spares):
            if len(spare) >= length and _is_free(spare):
                self._kept_bytes -= len(spare)
                return self._spares.pop(index)
        return None

    def keep(self, room: Room) -> None:
        """Keep the buffer of a frame that was handed out, for reuse once the frame is released."""
        if _ROOM_BYTES_FIRST <= len(room) <= self._bytes_max:
            self._spares.append(room)
            self._kept_bytes += len(room)
            while self._kept_bytes > self._bytes_max:
                self._kept_bytes -= len(self._spares.pop(0))


def _is_free(room: Room) -> bool:
    """Whether no view of it is left: Python does not resize a buffer with exports."""
    try:
        if isinstance(room, mmap):
            room.resize(len(room))
        else:
            room.append(room.pop())
    except BufferError:
        return False
    return True


class FrameReader:
    """The receiving end of one connection.

    `scratch` and `spare_room` may be shared by the connections of a loop: between frames a connection owns no buffer.
    An incomplete frame gets its own buffer, a large one in steps unless there is a spare one. The rest is received
    directly into it.
    """

    __slots__ = (
        "_filled",
        "_length",
        "_pending",
        "_prefix",
        "_room",
        "_scratch",
        "_spare_room",
        "frame_bytes_max",
        "limit_name",
    )

    def __init__(
        self, scratch: memoryview, frame_bytes_max: int, spare_room: SpareRoom, limit_name: str = ""
    ) -> None:
        """`limit_name` is the setting that limits the frame size, if there is one."""
        assert len(scratch) > _PREFIX_BYTES
        assert not scratch.readonly
        self.frame_bytes_max = frame_bytes_max
        self.limit_name = limit_name
        self._scratch = scratch
        self._prefix = b""
        self._spare_room = spare_room
        self._room: Room = bytearray()
        self._pending: memoryview | None = None
        """The part of the buffer that belongs to the frame."""
        self._filled = 0
        self._length = 0

    @property
    def is_idle(self) -> bool:
        """Nothing of a next frame has arrived."""
        return self._pending is None and not self._prefix

    @property
    def held_bytes(self) -> int:
        """The size of the buffer that waits for the rest of a frame."""
        return 0 if self._pending is None else len(self._pending)

    def buffer(self) -> memoryview:
        """Where to read the next bytes to. Invalidates frames in the scratch."""
        if self._pending is not None:
            return self._pending[self._filled :]
        if self._prefix:
            self._scratch[: len(self._prefix)] = self._prefix
            return self._scratch[len(self._prefix) :]
        return self._scratch

    def advance(self, count: int) -> list[memoryview]:
        """Accept the `count` bytes that were read into `buffer()`; the frames that are now complete.

        Frames come without their prefix and are writable. Those in the scratch are valid until the next `buffer()` of
        any connection.
        """
        pending = self._pending
        if pending is None:
            end = len(self._prefix) + count
            if end > _PREFIX_BYTES:
                (length,) = _PREFIX.unpack_from(self._scratch)
                if length == end - _PREFIX_BYTES and length <= self.frame_bytes_max:
                    # The common case: one complete frame.
                    self._prefix = b""
                    return [self._scratch[_PREFIX_BYTES:end]]
            return self._split(end)
        self._filled += count
        if self._filled == self._length:
            self._pending = None
            self._spare_room.keep(self._room)
            self._room = bytearray()
            return [pending]
        if self._filled == len(pending):
            self._keep(pending)
        return []

    def lasting(self, frame: memoryview) -> memoryview:
        """The frame for longer than that."""
        return memoryview(bytearray(frame)) if frame.obj is self._scratch.obj else frame

    def _split(self, end: int) -> list[memoryview]:
        scratch = self._scratch
        frames: list[memoryview] = []
        at = 0
        while end - at >= _PREFIX_BYTES:
            (length,) = _PREFIX.unpack_from(scratch, at)
            if not 0 <= length <= self.frame_bytes_max:
                by = f" ({self.limit_name})" if self.limit_name else ""
                raise MalformedMessage(f"a frame of {length} bytes; at most {self.frame_bytes_max} are accepted{by}")
            at += _PREFIX_BYTES
            if length > end - at:
                self._prefix = b""
                self._length = length
                self._keep(scratch[at:end])
                return frames
            frames.append(scratch[at : at + length])
            at += length
        self._prefix = bytes(scratch[at:end])
        return frames

    def _keep(self, part: memoryview) -> None:
        """Move the received part of a frame to a buffer with room for more of it."""
        if isinstance(self._room, mmap):
            # The whole frame is mapped. Bytes that have not arrived take no memory, and do not count as held.
            self._pending = memoryview(self._room)[: min(self._room_bytes(len(part)), self._length)]
            return
        spare = self._spare_room.take(self._length) if self._length >= _ROOM_BYTES_FIRST else None
        size = self._room_bytes(len(part))
        if spare is not None:
            self._room, size = spare, self._length
        else:
            self._room = bytearray(size) if size < MAPPED_FROM_BYTES else _mapped(_whole_steps(self._length), size)
        self._pending = memoryview(self._room)[: min(size, self._length)]
        self._pending[: len(part)] = part
        self._filled = len(part)

    def _room_bytes(self, arrived: int) -> int:
        room = max(_ROOM_BYTES_FIRST, arrived * _ROOM_GROWTH)
        if room < self._length:
            return room
        if self._length < _ROOM_BYTES_FIRST:
            return self._length
        # Frames of one sender have similar sizes: this buffer should fit the next.
        return _whole_steps(self._length)


def _mapped(length: int, size: int) -> Room:
    """Memory for a whole frame; only for what is needed now if the system refuses to reserve all of it."""
    try:
        return mmap(-1, length, MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError:
        return bytearray(size)


def _whole_steps(length: int) -> int:
    return -(-length // _ROOM_STEP_BYTES) * _ROOM_STEP_BYTES
