"""One connection: a non-blocking socket that reads into its handler's buffer and sends buffers and file ranges.

Every request passes through here, so the code is flat: no layer between the loop and the system call.
`handler.closed` and `handler.drained` are always called by the loop, never from within a method of the link.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence

from millpond.base.errors import RemoteError
from millpond.base.ports import Buffer, FileRange, LinkHandler, ReplyPart

READS_PER_WAKE = 4
"""A peer that always fills the buffer gets this many reads before others have their turn."""

SEND_BYTES_PER_WAKE = 256 << 10
"""The same for sending; a small rest is sent at once. Every consumer that is catching up delays up-to-date
consumers by this much per iteration: with 1 MiB their median latency doubled."""

SEND_BYTES_PER_TURN = 2 << 20
"""What all links together may send in one iteration of the loop; then large senders wait for the next. Otherwise a
thousand large responses, perhaps never read, would delay everyone else."""

SEND_BYTES_AT_LEAST = 64 << 10
"""Small responses never wait."""

CROWD = 64
"""While this many links wait for peers that do not read, each further one leaves little in the kernel."""

UNSENT_IN_KERNEL_BYTES = 64 << 10
"""Without a bound the kernel buffers megabytes per socket, from memory that all connections share."""

INLINE_BYTES_MAX = 8 << 10
"""A file range up to this size is read and joined with its neighbours: cheaper than its own sendfile."""

JOIN_BYTES_MAX = 64 << 10
"""Buffers up to this total size are joined; beyond it the kernel gathers them."""

CHUNK_BYTES = 256 << 10
"""How much of a file range is read at a time without sendfile."""

CLOSE_WAIT_SECONDS = 10.0
"""How long `close` waits for a peer that does not read what is queued for it."""

PARTS_MAX = 1024

HAS_SENDFILE = sys.platform.startswith("linux")
_MORE = getattr(socket, "MSG_MORE", 0)
_UNSENT_OPTION = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_NO_SENDFILE_HERE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

OnFault = Callable[["SocketLink | None", BaseException], None]
"""Called with an error on a link, or (None) while accepting one."""


class SendTurns:
    """How much may still be sent in this iteration of the loop, by all links together."""

    __slots__ = ("_is_due", "_loop", "left_bytes", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_due = False
        self.left_bytes = SEND_BYTES_PER_TURN
        self.waiting = 0
        """Links with data that the kernel does not accept now."""

    def allowance(self) -> int:
        """For one link, now; zero or less if it is the others' turn."""
        if self.left_bytes <= SEND_BYTES_PER_TURN // 2 and not self._is_due:
            # The loop runs it between two iterations: scheduled once half is used, so that a single sender never
            # waits.
            self._is_due = True
            self._loop.call_soon(self._begin)
        return min(self.left_bytes, SEND_BYTES_PER_WAKE)

    def _begin(self) -> None:
        self._is_due = False
        self.left_bytes = SEND_BYTES_PER_TURN


class LostLink:
    """A link without a socket, as none could be opened: it sends nothing, and ends at once."""

    local_host = ""
    listener = ""
    is_encrypted = False
    certificate_name: str | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self.peer = peer
        self.on_secured: Callable[[], None] | None = None
        self._loop = loop

    def start(self, handler: LinkHandler) -> None:
        self._loop.call_soon(handler.closed)

    def send(self, parts: Sequence[ReplyPart]) -> None:
        for part in parts:
            if isinstance(part, FileRange):
                part.file.release()

    def unsent_bytes(self) -> int:
        return 0

    def unsent_memory_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class SocketLink:
    """The link port over one connected socket."""

    __slots__ = (
        "_close_timer",
        "_closing",
        "_descriptor",
        "_handler",
        "_is_held_short",
        "_loop",
        "_on_fault",
        "_paused",
        "_queue",
        "_queued_bytes",
        "_recv_into",
        "_send",
        "_sendfile",
        "_socket",
        "_turns",
        "_writing",
        "alive",
        "certificate_name",
        "is_encrypted",
        "listener",
        "local_host",
        "on_secured",
        "peer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: str,
        sendfile: bool,
        on_fault: OnFault,
        turns: SendTurns | None = None,
    ) -> None:
        self.peer = peer
        self.local_host = plain_host(sock.getsockname()[0])
        self.listener = ""
        self.is_encrypted = False
        self.certificate_name: str | None = None
        self.on_secured: Callable[[], None] | None = None
        self.alive = True
        self._loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._sendfile = sendfile and HAS_SENDFILE
        self._on_fault = on_fault
        self._turns = turns or SendTurns(loop)
        self._handler: LinkHandler | None = None
        self._queue: deque[ReplyPart] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._writing = False
        self._is_held_short = False
        self._closing = False
        self._close_timer: asyncio.TimerHandle | None = None

    def start(self, handler: LinkHandler) -> None:
        """Set the owner and start to read."""
        self._handler = handler
        if not self.alive:
            self._loop.call_soon(self._tell_closed)
        elif not self._paused and not self._closing:
            self._loop.add_reader(self._descriptor, self._on_readable)

    # Reading

    def _on_readable(self) -> None:
        handler = self._handler
        assert handler is not None
        try:
            for _ in range(READS_PER_WAKE):
                buffer = handler.buffer()
                try:
                    count = self._recv_into(buffer)
                except (BlockingIOError, InterruptedError):
                    return
                except OSError:
                    self._die()
                    return
                if not count:
                    # The peer has finished sending. It may still read what is queued for it.
                    self.close()
                    return
                handler.received(count)
                if count < len(buffer) or self._paused or self._closing:
                    return
        except RemoteError as error:
            self._on_fault(self, error)
            self.close()
        except OSError as error:
            # An external fault that no handler has turned into a response. Anything else is a bug and reaches the
            # loop.
            self._on_fault(self, error)
            self._die()

    def pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            if self._handler is not None and not self._closing:
                self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if self._handler is not None and not self._closing:
                self._loop.add_reader(self._descriptor, self._on_readable)

    # Sending

    def send(self, parts: Sequence[ReplyPart]) -> None:
        if self._closing:
            release_parts(parts)
            return
        if len(parts) == 1 and not self._queue and not isinstance(part := parts[0], FileRange):
            # The common case: one buffer, and an empty queue.
            try:
                count = self._send(part)
            except (BlockingIOError, InterruptedError):
                count = 0
            except OSError:
                self._die()
                return
            if count < len(part):
                self._queue.append(memoryview(part)[count:])
                self._queued_bytes += len(part) - count
                self._wait_writable()
            return
        try:
            self._admit(parts)
        except OSError as error:
            self._on_fault(self, error)
            self._die()
            return
        if not self._writing:
            self._flush()

    def _admit(self, parts: Sequence[ReplyPart]) -> None:
        """Queue parts, small file ranges as their bytes."""
        queue = self._queue
        for index, part in enumerate(parts):
            length = len(part)
            if isinstance(part, FileRange) and length <= INLINE_BYTES_MAX:
                try:
                    part = _read(part.file.read_at(part.position, length), length, parts[index])
                except OSError:
                    release_parts(parts[index:])
                    raise
                release_parts(parts[index : index + 1])
            if length:
                queue.append(part)
                self._queued_bytes += length

    def unsent_bytes(self) -> int:
        return self._queued_bytes

    def unsent_memory_bytes(self) -> int:
        return sum(len(part) for part in self._queue if not isinstance(part, FileRange))

    def _flush(self) -> None:
        """Send until the queue is empty, the kernel accepts no more, or it is the others' turn."""
        queue = self._queue
        turns = self._turns
        budget = turns.allowance()
        if self._queued_bytes > JOIN_BYTES_MAX:
            if turns.waiting >= CROWD and not self._is_held_short:
                self._hold_short(True)
            if budget <= 0:
                self._wait_writable()
                return
        try:
            while queue:
                front = queue[0]
                count = self._send_range(front, budget) if isinstance(front, FileRange) else self._send_buffers(front)
                self._queued_bytes -= count
                budget -= count
                turns.left_bytes -= count
                if budget <= 0 and self._queued_bytes > JOIN_BYTES_MAX:
                    self._wait_writable()
                    return
        except (BlockingIOError, InterruptedError):
            self._wait_writable()
        except (ConnectionError, TimeoutError):
            self._die()
        except OSError as error:
            # Not the peer's fault: the file cannot be read, or is shorter than the response declares.
            self._on_fault(self, error)
            self._die()

    def _send_buffers(self, front: Buffer) -> int:
        """One system call for all buffers up to the next file range."""
        queue = self._queue
        buffers: list[Buffer] = []
        total = 0
        more = 0
        for part in queue:
            if isinstance(part, FileRange):
                more = _MORE
                break
            buffers.append(part)
            total += len(part)
            if total >= SEND_BYTES_PER_WAKE or len(buffers) == PARTS_MAX:
                break
        if len(buffers) == 1:
            sent = self._send(front, more)
        elif total <= JOIN_BYTES_MAX:
            sent = self._send(b"".join(buffers), more)
        else:
            sent = self._socket.sendmsg(buffers, (), more)
        left = sent
        while left:
            part = queue.popleft()
            if len(part) > left:
                assert not isinstance(part, FileRange)
                queue.appendleft(memoryview(part)[left:])
                break
            left -= len(part)
        return sent

    def _send_range(self, part: FileRange, budget: int) -> int:
        source = part.file.descriptor() if self._sendfile else None
        if source is None:
            return self._unroll(part)
        try:
            length = min(part.length, max(budget, SEND_BYTES_AT_LEAST))
            sent = os.sendfile(self._descriptor, source, part.position, length)
        except OSError as error:
            if error.errno not in _NO_SENDFILE_HERE:
                raise
            self._sendfile = False
            return self._unroll(part)
        if not sent:
            raise _too_short(part)
        self._shorten(part, sent)
        return sent

    def _unroll(self, part: FileRange) -> int:
        """Turn the start of the range into a buffer, to be sent later."""
        self._unroll_range(part, CHUNK_BYTES)
        return 0

    def _unroll_range(self, part: FileRange, bytes_max: int) -> None:
        length = min(part.length, bytes_max)
        data = _read(part.file.read_at(part.position, length), length, part)
        self._shorten(part, length)
        self._queue.appendleft(data)

    def _shorten(self, part: FileRange, count: int) -> None:
        """Take `count` bytes off the first range; release it once nothing is left."""
        if count == part.length:
            self._queue.popleft()
            part.file.release()
        else:
            self._queue[0] = FileRange(part.file, part.position + count, part.length - count)

    def _wait_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._turns.waiting += 1
            self._loop.add_writer(self._descriptor, self._on_writable)

    def _stop_waiting(self) -> None:
        """Everything has been sent."""
        self._writing = False
        self._turns.waiting -= 1
        self._loop.remove_writer(self._descriptor)
        if self._is_held_short:
            # The peer reads again.
            self._hold_short(False)

    def _hold_short(self, is_short: bool) -> None:
        self._is_held_short = is_short
        if _UNSENT_OPTION is not None:
            # 0 restores the system's default.
            self._socket.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, UNSENT_IN_KERNEL_BYTES if is_short else 0)

    def _on_writable(self) -> None:
        self._flush()
        if self._queue or not self.alive:
            return
        self._stop_waiting()
        if self._closing:
            self._die()
        elif self._handler is not None:
            self._handler.drained()

    # Closing

    def close(self) -> None:
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if self._queue:
            self._close_timer = self._loop.call_later(CLOSE_WAIT_SECONDS, self._die)
        else:
            self._die()

    def abort(self) -> None:
        self._die()

    def _die(self) -> None:
        """Release everything at once; the loop tells the handler."""
        if not self.alive:
            return
        self.pause_reading()
        self._closing = True
        self.alive = False
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._writing:
            self._writing = False
            self._turns.waiting -= 1
            self._loop.remove_writer(self._descriptor)
        self._socket.close()
        release_parts(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        if self._handler is not None:
            self._loop.call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.closed()


def plain_host(address: str) -> str:
    """An IPv4 address in plain form, even if it was accepted on a dual-stack socket."""
    return address.removeprefix("::ffff:")


def release_parts(parts: Sequence[ReplyPart]) -> None:
    for part in parts:
        if isinstance(part, FileRange):
            part.file.release()


def _read(data: bytes, length: int, part: ReplyPart) -> bytes:
    if len(data) < length:
        raise _too_short(part)
    return data


def _too_short(part: ReplyPart) -> OSError:
    path = part.file.path if isinstance(part, FileRange) else None
    return OSError(errno.EIO, "the file is shorter than the response declares", path)
