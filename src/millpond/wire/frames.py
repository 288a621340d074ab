"""Splits a byte stream into length-prefixed frames, without a copy where none is needed and without any I/O."""

from __future__ import annotations

import struct

from millpond.base.errors import MalformedMessage

_PREFIX = struct.Struct(">i")
_PREFIX_BYTES = _PREFIX.size

# Room is zeroed when it is made, so it follows what has arrived: four hostile bytes cannot claim a whole large frame.
_ROOM_BYTES_FIRST = 64 << 10
_ROOM_GROWTH = 4


class FrameReader:
    """The receiving end of one connection.

    `scratch` is shared by every connection of a loop: between frames a connection owns no buffer. A frame that does
    not arrive whole gets a buffer of its own (a large one in steps), into which the rest is received directly.
    """

    __slots__ = ("_filled", "_length", "_pending", "_prefix", "_scratch", "frame_bytes_max")

    def __init__(self, scratch: memoryview, frame_bytes_max: int) -> None:
        assert len(scratch) > _PREFIX_BYTES
        assert not scratch.readonly
        self.frame_bytes_max = frame_bytes_max
        self._scratch = scratch
        self._prefix = b""
        self._pending: memoryview | None = None
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
        """Where the next bytes should be read to. Ends the life of frames that lie in the scratch."""
        if self._pending is not None:
            return self._pending[self._filled :]
        if self._prefix:
            self._scratch[: len(self._prefix)] = self._prefix
            return self._scratch[len(self._prefix) :]
        return self._scratch

    def advance(self, count: int) -> list[memoryview]:
        """Take the `count` bytes that were read into `buffer()` and give the frames that are now complete.

        Frames come without their prefix and may be written to. Those in the scratch live until the next `buffer()`
        of any connection.
        """
        pending = self._pending
        if pending is None:
            return self._split(len(self._prefix) + count)
        self._filled += count
        if self._filled == self._length:
            self._pending = None
            return [pending]
        if self._filled == len(pending):
            self._keep(pending)
        return []

    def _split(self, end: int) -> list[memoryview]:
        scratch = self._scratch
        frames: list[memoryview] = []
        at = 0
        while end - at >= _PREFIX_BYTES:
            (length,) = _PREFIX.unpack_from(scratch, at)
            if not 0 <= length <= self.frame_bytes_max:
                raise MalformedMessage(f"a frame of {length} bytes; at most {self.frame_bytes_max} are taken")
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
        """Move what has arrived of a frame to a buffer with room for more of it."""
        room = min(self._length, max(_ROOM_BYTES_FIRST, len(part) * _ROOM_GROWTH))
        self._pending = memoryview(bytearray(room))
        self._pending[: len(part)] = part
        self._filled = len(part)
