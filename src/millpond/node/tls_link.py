"""An encrypted link: OpenSSL works on buffers in memory, and the socket stays ours.

So everything sent in one iteration leaves in one system call, and received data is decrypted directly into the
handler's buffer. A handshake takes a millisecond of CPU, which any client can request: it runs on a separate thread,
with a fair turn for each address, and the loop does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from millpond.base.errors import RemoteError
from millpond.base.later import Later
from millpond.base.ports import Buffer, FileRange, LinkHandler, ReplyPart
from millpond.broker.security.fair_queue import FairQueue
from millpond.node.distinguished_name import subject_of
from millpond.node.link import (
    CLOSE_WAIT_SECONDS,
    CROWD,
    JOIN_BYTES_MAX,
    SEND_BYTES_AT_LEAST,
    OnFault,
    SendTurns,
    SocketLink,
    release_parts,
)

SEAL_BYTES: Final = 64 << 10
"""How much is encrypted at a time. OpenSSL keeps as much memory for each link that has sent that much; more is not
faster."""

SEALED_BYTES_MAX: Final = 1 << 20
"""The limit for a peer that keeps triggering TLS protocol responses and does not read them."""

RECORDS_PER_WAKE: Final = 64
"""A peer may send one byte per TLS record, which costs nearly as much as a full one: after this many it is the
others' turn."""

Wrap = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]
"""Starts a TLS connection over two buffers, incoming and outgoing. Runs on a worker thread."""


class TlsRefused(RemoteError):
    """The peer does not speak acceptable TLS, or its certificate is not trusted."""


class TlsLink(SocketLink):
    """The link port over one connected socket and TLS. Until the handshake is done, sends are queued."""

    __slots__ = (
        "_engine",
        "_handshakes",
        "_has_rest",
        "_incoming",
        "_is_secured",
        "_is_server",
        "_outgoing",
        "_patience",
        "_patience_timer",
        "_scratch",
        "_sealed",
        "_step",
        "_wrap",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: str,
        on_fault: OnFault,
        *,
        is_server: bool,
        wrap: Wrap,
        handshakes: FairQueue,
        scratch: memoryview,
        handshake_ms_max: int,
        turns: SendTurns | None = None,
    ) -> None:
        super().__init__(loop, sock, peer, False, on_fault, turns)
        self.is_encrypted = True
        self._is_server = is_server
        self._wrap = wrap
        self._handshakes = handshakes
        self._step: Later[tuple[bool, str | None]] | None = None
        self._scratch = scratch
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._engine: ssl.SSLObject | None = None
        self._is_secured = False
        self._has_rest = False
        """Received data is delivered in the next iteration; until then nothing more is read."""
        self._sealed: memoryview = memoryview(b"")
        """Encrypted data that the kernel has not accepted yet."""
        self._patience = handshake_ms_max / 1000
        self._patience_timer: asyncio.TimerHandle | None = None

    def start(self, handler: LinkHandler) -> None:
        self._handler = handler
        if not self.alive:
            self._loop.call_soon(self._tell_closed)
            return
        self._patience_timer = self._loop.call_later(self._patience, self._die)
        if self._is_server:
            self._loop.add_reader(self._descriptor, self._on_hello)
        else:
            self._agree()

    # Handshake

    def _on_hello(self) -> None:
        """The peer has sent handshake data."""
        try:
            count = self._recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self._die()
            return
        self._loop.remove_reader(self._descriptor)
        self._incoming.write(self._scratch[:count])
        self._agree()

    def _agree(self) -> None:
        host = self.peer.rpartition(":")[0]
        self._step = self._handshakes.run(host, self._handshake)
        self._step.then(self._on_answer, self._on_refused)

    def _handshake(self) -> tuple[bool, str | None]:
        """One step, on a worker: whether it was the last, and the name in the peer's certificate."""
        if not self.alive:
            return False, None
        engine = self._engine
        if engine is None:
            engine = self._engine = self._wrap(self._incoming, self._outgoing)
        try:
            engine.do_handshake()
        except ssl.SSLWantReadError:
            return False, None
        certificate = engine.getpeercert(binary_form=True)
        return True, subject_of(certificate) if certificate else None

    def _on_answer(self, answer: tuple[bool, str | None]) -> None:
        if not self.alive:
            return
        is_last, name = answer
        self._take_outgoing()
        if is_last:
            self._on_agreed(name)
        else:
            self._loop.add_reader(self._descriptor, self._on_hello)
        if self.alive and not self._writing:
            self._flush()
            if self._closing and self._is_secured and not self._writing and self.alive:
                self._end()

    def _on_agreed(self, name: str | None) -> None:
        assert self._patience_timer is not None
        self._patience_timer.cancel()
        self.certificate_name = name
        self._is_secured = True
        tell, self.on_secured = self.on_secured, None
        try:
            if tell is not None:
                tell()
        except RemoteError as error:
            self._on_fault(self, error)
            self._die()
            return
        if not self._paused and not self._closing:
            self._loop.add_reader(self._descriptor, self._on_readable)
            # Its first request may have come with the last handshake message.
            self._deliver()

    def _on_refused(self, failure: Exception) -> None:
        if not self.alive:
            return
        if not isinstance(failure, OSError | ValueError):
            raise failure
        self._on_fault(self, _refusal(failure))
        # OpenSSL has written an alert for the peer; there is no time to wait until it is read.
        self._take_outgoing()
        self._send_last()
        self._die()

    # Reading

    def _on_readable(self) -> None:
        if self._has_rest:
            return
        try:
            count = self._recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._die()
            return
        if not count:
            # The peer has finished sending. It may still read what is queued for it.
            self.close()
            return
        self._incoming.write(self._scratch[:count])
        self._deliver()

    def _deliver(self) -> None:
        """Give the handler what has arrived, as far as it accepts it."""
        handler, engine, incoming = self._handler, self._engine, self._incoming
        assert handler is not None
        assert engine is not None
        records = 0
        try:
            while not self._paused and not self._closing:
                buffer = handler.buffer()
                count = 0
                is_over = False
                try:
                    while count < len(buffer):
                        # At most one TLS record; handlers prefer to get many at once.
                        arrived: int = engine.read(len(buffer) - count, buffer[count:])  # type: ignore[assignment]
                        count += arrived
                        records += 1
                        is_over = not arrived
                        # Reading more when nothing is left would cost an exception.
                        if is_over or records >= RECORDS_PER_WAKE or not (incoming.pending or engine.pending()):
                            break
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    raise _refusal(error) from None
                finally:
                    if self._outgoing.pending:
                        self._answer_in_tls()
                if count:
                    handler.received(count)
                if is_over:
                    self.close()
                elif records >= RECORDS_PER_WAKE and (incoming.pending or engine.pending()):
                    self._deliver_soon()
                    return
                elif count < len(buffer):
                    return
        except RemoteError as error:
            self._on_fault(self, error)
            self.close()
        except OSError as error:
            # An external fault that no handler has turned into a response. Anything else is a bug and reaches the
            # loop.
            self._on_fault(self, error)
            self._die()

    def _answer_in_tls(self) -> None:
        """Send TLS protocol messages: key updates, alerts."""
        self._take_outgoing()
        if len(self._sealed) > SEALED_BYTES_MAX:
            raise TlsRefused("the peer does not read TLS responses that it requests")
        if not self._writing:
            self._flush()

    def pause_reading(self) -> None:
        if self._is_secured:
            super().pause_reading()
        else:
            self._paused = True

    def resume_reading(self) -> None:
        if not self._is_secured:
            self._paused = False
            return
        was_paused = self._paused
        super().resume_reading()
        if was_paused and not self._closing:
            # Data read from the socket before is still to be delivered.
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._has_rest:
            self._has_rest = True
            self._loop.call_soon(self._deliver_rest)

    def _deliver_rest(self) -> None:
        self._has_rest = False
        if self.alive and self._handler is not None:
            self._deliver()

    # Sending

    def send(self, parts: Sequence[ReplyPart]) -> None:
        if self._closing:
            release_parts(parts)
            return
        try:
            self._admit(parts)
        except OSError as error:
            self._on_fault(self, error)
            self._die()
            return
        if self._is_secured and not self._writing:
            self._flush()

    def unsent_bytes(self) -> int:
        return self._queued_bytes + len(self._sealed)

    def unsent_memory_bytes(self) -> int:
        return super().unsent_memory_bytes() + len(self._sealed)

    def _flush(self) -> None:
        """Encrypt and send until nothing is left, the kernel accepts no more, or it is the others' turn."""
        turns = self._turns
        budget = max(turns.allowance(), SEND_BYTES_AT_LEAST)
        if turns.waiting >= CROWD and not self._is_held_short and self._queued_bytes > JOIN_BYTES_MAX:
            self._hold_short(True)
        try:
            while True:
                while self._sealed:
                    count = self._send(self._sealed)
                    self._sealed = self._sealed[count:]
                    budget -= count
                    turns.left_bytes -= count
                if not self._queue or not self._is_secured:
                    return
                if budget <= 0:
                    self._wait_writable()
                    return
                self._seal()
        except (BlockingIOError, InterruptedError):
            self._wait_writable()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self._die()
        except OSError as error:
            # Not the peer's fault: the file cannot be read, or is shorter than the response declares.
            self._on_fault(self, error)
            self._die()

    def _seal(self) -> None:
        """Encrypt what is next in the queue, at most what one send takes."""
        engine = self._engine
        assert engine is not None
        rest = memoryview(self._next_bytes())
        self._queued_bytes -= len(rest)
        while rest:
            rest = rest[engine.write(rest) :]
        self._take_outgoing()

    def _next_bytes(self) -> Buffer:
        """The next bytes of the queue. Small parts are joined: each would become its own TLS record."""
        queue = self._queue
        if isinstance(queue[0], FileRange):
            self._unroll_range(queue[0], SEAL_BYTES)
        parts: list[Buffer] = []
        total = 0
        while queue and total < SEAL_BYTES:
            part = queue[0]
            if isinstance(part, FileRange):
                break
            room = SEAL_BYTES - total
            if len(part) > room:
                parts.append(memoryview(part)[:room])
                queue[0] = memoryview(part)[room:]
                total += room
            else:
                parts.append(part)
                queue.popleft()
                total += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_outgoing(self) -> None:
        if self._outgoing.pending:
            fresh = self._outgoing.read()
            self._sealed = memoryview(bytes(self._sealed) + fresh if self._sealed else fresh)

    def _on_writable(self) -> None:
        self._flush()
        if self._sealed or (self._queue and self._is_secured) or not self.alive:
            return
        self._stop_waiting()
        if not self._is_secured:
            return
        if self._closing:
            self._end()
        elif self._handler is not None:
            self._handler.drained()

    # Closing

    def close(self) -> None:
        if self._closing:
            return
        if not self._is_secured and not self._queue:
            self._die()
            return
        self.pause_reading()
        self._closing = True
        if self._queue or self._sealed:
            self._close_timer = self._loop.call_later(CLOSE_WAIT_SECONDS, self._die)
        else:
            self._end()

    def _end(self) -> None:
        """Everything has been sent: send close_notify, which proves that nothing was cut off."""
        assert self._engine is not None
        with contextlib.suppress(ssl.SSLError):
            # It would wait for the peer's close_notify.
            self._engine.unwrap()
        self._take_outgoing()
        self._send_last()
        self._die()

    def _send_last(self) -> None:
        with contextlib.suppress(OSError):
            # Gone already, or it does not read.
            if self._sealed:
                self._send(self._sealed)

    def _die(self) -> None:
        if not self.alive:
            return
        if self._patience_timer is not None:
            self._patience_timer.cancel()
        if not self._is_secured:
            self._loop.remove_reader(self._descriptor)
        if self._step is not None:
            # It is no longer needed.
            self._step.cancel()
        super()._die()
        self.on_secured = None
        self._sealed = memoryview(b"")


def _refusal(failure: Exception) -> TlsRefused:
    if isinstance(failure, ssl.SSLCertVerificationError):
        return TlsRefused(f"the peer's certificate is not trusted: {failure.verify_message}")
    reason = getattr(failure, "reason", None)
    return TlsRefused(f"TLS: {str(reason).lower().replace('_', ' ') if reason else failure}")
