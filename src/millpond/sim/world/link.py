"""One end of a simulated connection: bytes are delayed and split, but always arrive in order."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from millpond.base.errors import RemoteError
from millpond.base.ports import Clock, FileRange, Link, LinkHandler, ReplyPart
from millpond.sim.world.file_tree import fault

WINDOW_BYTES = 128 << 10
"""How much may be in flight or unread at the other end before the sender has to wait."""

CLOSE_WAIT_MS = 10_000


class Tap(Protocol):
    """Observes the bytes on the wire without changing anything."""

    def sent(self, link: SimLink, data: bytes) -> None:
        """This end has sent a chunk."""
        ...

    def arrived(self, link: SimLink, data: bytes) -> None:
        """A chunk sent by this end has reached the other."""
        ...

    def lost(self, link: SimLink) -> None:
        """This end's bytes in flight will never arrive."""
        ...


class Wires(Protocol):
    """The part of the network that a link uses."""

    tap: Tap | None
    clock: Clock
    random: Random
    chunk_bytes_max: int

    def latency_ms(self, source: str, target: str) -> int: ...

    def is_cut(self, source: str, target: str) -> bool: ...

    def is_rejected(self, source: str, target: str) -> bool: ...

    def is_down(self, host: str) -> bool: ...

    def run_at(self, host: str, callback: Callable[[], None]) -> None: ...

    def fault(self, link: Link, error: Exception) -> None: ...


class SimLink:
    """The link port over two queues. Bytes in flight belong to the sending end."""

    def __init__(self, wires: Wires, host: str, peer_host: str, peer: str) -> None:
        self.host = host
        self.local_host = host
        self.peer_host = peer_host
        self.peer = peer
        self.listener = ""
        self.is_encrypted = False
        self.certificate_name: str | None = None
        self.on_secured: Callable[[], None] | None = None
        self.alive = True
        self.other: SimLink | None = None
        self._wires = wires
        self._handler: LinkHandler | None = None
        self._queue: deque[ReplyPart] = deque()
        self._queued_bytes = 0
        self._wire: deque[bytes] = deque()
        self._under_way_bytes = 0
        self._arrived_at = 0
        self._held = 0
        self._inbox: deque[bytes] = deque()
        self._ended = False
        self._broke_off = False
        self._paused = False
        self._reading = False
        self._waiting = False
        self._closing = False

    def start(self, handler: LinkHandler) -> None:
        """Attach the handler."""
        self._handler = handler
        if not self.alive:
            self._wires.clock.call_soon(self._tell_closed)

    def is_done(self) -> bool:
        """Whether it is closed and has nothing in flight."""
        return not self.alive and not self._wire

    def join(self, other: SimLink) -> None:
        """Establish the connection in both directions."""
        self.other, other.other = other, self
        for end in (self, other):
            end._flow()

    # Sending

    def send(self, parts: Sequence[ReplyPart]) -> None:
        if self._closing:
            _release(parts)
            return
        idle = not self._queue
        for part in parts:
            if not len(part):
                _release((part,))
                continue
            # Copied, because the sender may reuse its buffer; a file range is read when it is sent.
            self._queue.append(part if isinstance(part, FileRange) else memoryview(bytes(part)))
            self._queued_bytes += len(part)
        if idle and self._queue:
            if self._wires.random.random() < 0.2:
                # As with a full socket buffer: sent a moment later.
                self._waiting = True
                self._wires.clock.call_soon(self._flow)
            else:
                self._pump()

    def unsent_bytes(self) -> int:
        return self._queued_bytes

    def unsent_memory_bytes(self) -> int:
        return sum(len(part) for part in self._queue if not isinstance(part, FileRange))

    def _flow(self) -> None:
        self._wires.run_at(self.host, self._flow_on)

    def _flow_on(self) -> None:
        """Continue sending, as far as the window allows."""
        if not self.alive:
            return
        self._pump()
        if self._queue:
            return
        waited, self._waiting = self._waiting, False
        if self._closing:
            self._end()
        elif waited and self._handler is not None:
            self._handler.drained()

    def _pump(self) -> None:
        while self._queue and self.other is not None and self._under_way_bytes < WINDOW_BYTES:
            wanted = 1 << self._wires.random.randint(0, self._wires.chunk_bytes_max.bit_length() - 1)
            try:
                data = self._take(min(wanted, WINDOW_BYTES - self._under_way_bytes))
            except OSError as error:
                self._wires.fault(self, error)
                self._end()
                return
            self._put_on_wire(data)
        if self._queue:
            self._waiting = True

    def _take(self, length: int) -> bytes:
        """Take up to `length` bytes from the front of the queue; a consumed part is released."""
        part = self._queue[0]
        if isinstance(part, FileRange):
            data = part.file.read_at(part.position, min(length, part.length))
            if not data and part.length:
                raise fault(errno.EIO, part.file.path)
            rest: ReplyPart = FileRange(part.file, part.position + len(data), part.length - len(data))
        else:
            data = bytes(part[:length])
            rest = part[length:]
        if rest:
            self._queue[0] = rest
        else:
            _release((self._queue.popleft(),))
        self._queued_bytes -= len(data)
        return data

    def _put_on_wire(self, data: bytes) -> None:
        """Empty data is the end of the stream."""
        if self._wires.tap is not None:
            self._wires.tap.sent(self, data)
        self._wire.append(data)
        self._under_way_bytes += len(data)
        now = self._wires.clock.monotonic_ms()
        self._arrived_at = max(self._arrived_at, now + self._wires.latency_ms(self.host, self.peer_host))
        self._wires.clock.call_later(self._arrived_at - now, self._arrive)

    def _arrive(self) -> None:
        """The next chunk in flight reaches the other end, unless the path is cut."""
        if not self._wire:
            return
        if self._wires.is_rejected(self.host, self.peer_host):
            # A firewall sends the reset in place of the peer, which does not notice; nothing is retransmitted.
            if self.alive:
                self.reset()
            else:
                self._lose_wire()
            return
        if self._wires.is_cut(self.host, self.peer_host):
            self._held += 1
            return
        other = self.other
        assert other is not None
        data = self._wire.popleft()
        if self._wires.tap is not None:
            self._wires.tap.arrived(self, data)
        if other.alive:
            other._take_in(data)
            if self._broke_off and not data:
                other.reset()
        elif data and self.alive and not self._wires.is_down(self.peer_host):
            # A running machine that does not know the connection answers with a reset.
            self.reset()

    def retry_held(self) -> None:
        """The path is open again: held chunks arrive now, as retransmission would deliver them."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._wires.clock.call_later(self._wires.latency_ms(self.host, self.peer_host), self._arrive)

    # Reading

    def _take_in(self, data: bytes) -> None:
        if data:
            self._inbox.append(data)
        else:
            self._ended = True
        self._read()

    def _read(self) -> None:
        self._wires.run_at(self.host, self._read_all)

    def _read_all(self) -> None:
        if self._reading:
            return
        self._reading = True
        try:
            while self._inbox and not self._paused and not self._closing and self._handler is not None:
                self._read_piece(self._handler)
        except RemoteError as error:
            self._wires.fault(self, error)
            self.close()
        finally:
            self._reading = False
        if self._ended and not self._inbox and not self._paused:
            self.close()

    def _read_piece(self, handler: LinkHandler) -> None:
        data = self._inbox.popleft()
        room = handler.buffer()
        count = min(len(data), len(room))
        room[:count] = data[:count]
        if count < len(data):
            self._inbox.appendleft(data[count:])
        handler.received(count)
        if self.other is not None:
            self.other._acknowledged(count)

    def _acknowledged(self, count: int) -> None:
        self._under_way_bytes -= count
        # Only once half the window is free, to avoid silly window syndrome.
        if self._waiting and self.alive and self._under_way_bytes <= WINDOW_BYTES // 2:
            self._wires.clock.call_soon(self._flow)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._wires.clock.call_soon(self._read)

    # The end

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._queue:
            self._waiting = True
            self._wires.clock.call_later(CLOSE_WAIT_MS, self.abort)
        else:
            self._end()

    def abort(self) -> None:
        if self.alive:
            self._end()

    def reset(self) -> None:
        """Break the connection at this end, which notices now; the other end does not."""
        if self.alive:
            self._lose_wire()
            self._die()

    def vanish(self) -> None:
        """This end's machine lost power: no peer is notified, and nothing more arrives from it."""
        self._handler = None
        self._lose_wire()
        if self.alive:
            self._die()

    def _lose_wire(self) -> None:
        self._wire.clear()
        if self._wires.tap is not None:
            self._wires.tap.lost(self)

    def _end(self) -> None:
        # Closing with unread bytes makes the kernel send a reset.
        self._broke_off = bool(self._inbox)
        self._die()
        if self.other is not None:
            self._put_on_wire(b"")

    def _die(self) -> None:
        self.alive = False
        self._closing = True
        _release(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._inbox.clear()
        if self._handler is not None:
            self._wires.clock.call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        self._wires.run_at(self.host, self._tell_closed_now)

    def _tell_closed_now(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.closed()


def _release(parts: Sequence[ReplyPart]) -> None:
    for part in parts:
        if isinstance(part, FileRange):
            part.file.release()
