"""A TCP proxy between clients and a node that can misbehave: delay, reset, and leave connections half open.

Loopback only. It keeps its port for as long as it lives, so that a node behind it comes back where clients look.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import Final, cast

from millpond.testing.loop_thread import LoopThread
from millpond.testing.ports import HOST, bound, free_port

BACKLOG: Final = 256
HELD_BYTES_MAX: Final = 8 << 20
"""Bytes buffered per direction of a slow connection before reading stops."""

_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for zero seconds: close sends RST instead of FIN."""


class Proxy:
    """Methods are thread-safe and return when done. Proxies may share a thread."""

    def __init__(self, thread: LoopThread | None = None) -> None:
        self._owns_thread = thread is None
        self._thread = thread or LoopThread("millpond-proxy")
        self._pairs: set[_Pair] = set()
        self._server: asyncio.Server | None = None
        self._target = 0
        self._delay_seconds = 0.0
        self._cut = (False, False)
        self._is_open = self._rejects = False
        self.port: int = free_port()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def open(self, target_port: int) -> None:
        """Listen, and pass everything to this port of the loopback."""
        self._target = target_port
        self._is_open = True
        if not self._rejects:
            self._listen_now()

    def shut(self) -> None:
        """Refuse connections and reset open ones, like a host whose process has died."""
        self._is_open = False
        self._thread.call(self._shut)

    def reject(self) -> None:
        """Refuse connections and reset open ones until `heal`, like a rejecting firewall."""
        self._rejects = True
        self._thread.call(self._shut)

    def reset_all(self) -> int:
        """Reset every connection; returns their number."""
        return self._thread.call(self._reset_all)

    def half_open_all(self) -> int:
        """Silence every connection without closing it, as if the peer had vanished."""
        return self._thread.call(lambda: sum(pair.fall_silent() for pair in self._pairs))

    def delay(self, round_trip_ms: float) -> None:
        """Delay every round trip by this much, half of it each way."""
        self._thread.call(lambda: self._set_delay(round_trip_ms / 2000))

    def cut(self, *, to_node: bool = False, to_client: bool = False) -> None:
        """Hold back these directions, on new connections too; the bytes arrive after `heal`.

        So does a network that loses packets: the connections stay open, and TCP sends again what was lost.
        """
        self._thread.call(lambda: self._set_cut(self._cut[0] or to_node, self._cut[1] or to_client))

    def heal(self) -> None:
        """Undo every `cut` and `reject`."""
        self._thread.call(lambda: self._set_cut(False, False))
        if self._rejects:
            self._rejects = False
            if self._is_open:
                self._listen_now()

    def count(self) -> int:
        return self._thread.call(lambda: len(self._pairs))

    def close(self) -> None:
        self.shut()
        if self._owns_thread:
            self._thread.stop()

    def _listen_now(self) -> None:
        sock = bound(self.port)
        sock.listen(BACKLOG)
        asyncio.run_coroutine_threadsafe(self._listen(sock), self._thread.loop).result()

    # On the loop.

    async def _listen(self, sock: socket.socket) -> None:
        self._server = await self._thread.loop.create_server(self._accept, sock=sock)

    def _accept(self) -> _End:
        pair = _Pair(self._thread.loop, self._delay_seconds)
        pair.set_cut(*self._cut)
        self._pairs.add(pair)
        pair.joining = self._thread.loop.create_task(self._join(pair))
        return pair.client

    async def _join(self, pair: _Pair) -> None:
        try:
            await self._thread.loop.create_connection(lambda: pair.node, HOST, self._target)
        except OSError:
            pair.reset()
        try:
            await pair.gone
        finally:
            self._pairs.discard(pair)

    def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset_all()

    def _reset_all(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        self._pairs.clear()
        return len(pairs)

    def _set_delay(self, seconds: float) -> None:
        self._delay_seconds = seconds
        for pair in self._pairs:
            pair.set_delay(seconds)

    def _set_cut(self, to_node: bool, to_client: bool) -> None:
        self._cut = (to_node, to_client)
        for pair in self._pairs:
            pair.set_cut(to_node, to_client)


class _Pair:
    """A client's connection and ours to the node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_seconds: float) -> None:
        self.client = _End(loop)
        self.node = _End(loop)
        self.client.other, self.node.other = self.node, self.client
        self.client.pair = self.node.pair = self
        self.gone: asyncio.Future[None] = loop.create_future()
        self.joining: asyncio.Task[None] | None = None
        self.is_silent = False
        self.set_delay(delay_seconds)

    def set_delay(self, seconds: float) -> None:
        for end in (self.client, self.node):
            end.delay_seconds = seconds
            if not seconds:
                end.pass_on_held()

    def set_cut(self, to_node: bool, to_client: bool) -> None:
        self.client.set_cut(to_node)
        self.node.set_cut(to_client)

    def fall_silent(self) -> bool:
        """Whether it was not silenced before."""
        was_silent, self.is_silent = self.is_silent, True
        for end in (self.client, self.node):
            end.hold_reading()
        return not was_silent

    def reset(self) -> None:
        for end in (self.client, self.node):
            end.reset()
        self.end()

    def end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class _End(asyncio.Protocol):
    """One end of a pair: what it reads, the other end writes, now or later."""

    other: _End
    pair: _Pair

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._held: deque[tuple[float, bytes | None]] = deque()
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_reset = False
        self._is_cut = False
        self._cut_off: list[bytes | None] = []
        self.delay_seconds = 0.0
        self.has_sent_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_reset:
            self.reset()
            return
        if self.pair.is_silent or self._is_cut:
            # uvloop starts reading after this regardless.
            self._loop.call_soon(self._hold_if_silent)
        for data in self._early:
            self._transport.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        self._pass_on(data)

    def eof_received(self) -> bool:
        self._pass_on(None)
        # The other direction goes on.
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.pair.is_silent:
            return
        if error is not None:
            self.other.reset()
        else:
            self.other.close()
        if self.other._transport is None:
            self.pair.end()

    def pause_writing(self) -> None:
        self.other.hold_reading()

    def resume_writing(self) -> None:
        if not self.pair.is_silent and self.other._held_bytes <= HELD_BYTES_MAX:
            self.other.go_on_reading()

    # What is read here and written there.

    def _pass_on(self, data: bytes | None) -> None:
        if self._is_cut:
            # Some loops do not stop reading at once.
            self._cut_off.append(data)
            return
        if not self.delay_seconds and not self._held:
            self.other.write(data)
            return
        self._held.append((self._loop.time() + self.delay_seconds, data))
        self._held_bytes += len(data or b"")
        if self._held_bytes > HELD_BYTES_MAX:
            self.hold_reading()
        if self._timer is None:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        self._timer = self._loop.call_at(self._held[0][0], self._on_due) if self._held else None

    def _on_due(self) -> None:
        self._pass_on_until(self._loop.time())
        self._wait_for_first()

    def pass_on_held(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pass_on_until(float("inf"))

    def _pass_on_until(self, now: float) -> None:
        was_full = self._held_bytes > HELD_BYTES_MAX
        while self._held and self._held[0][0] <= now:
            data = self._held.popleft()[1]
            self._held_bytes -= len(data or b"")
            if not self.pair.is_silent:
                self.other.write(data)
        if was_full and self._held_bytes <= HELD_BYTES_MAX:
            self.go_on_reading()

    def write(self, data: bytes | None) -> None:
        """None is EOF."""
        if self._transport is None:
            # The connection to the node is not open yet, or no longer.
            if data is not None and self is self.pair.node:
                self._early.append(data)
        elif data is not None:
            self._transport.write(data)
        elif self.other.has_sent_eof:
            # EOF in both directions.
            self.close()
            self.other.close()
        elif self._transport.can_write_eof():
            self.has_sent_eof = True
            with contextlib.suppress(OSError, RuntimeError):
                self._transport.write_eof()

    def _hold_if_silent(self) -> None:
        if self.pair.is_silent or self._is_cut:
            self.hold_reading()

    def hold_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def set_cut(self, is_cut: bool) -> None:
        """Stop forwarding from this end."""
        was_cut, self._is_cut = self._is_cut, is_cut
        if is_cut:
            self.hold_reading()
        elif was_cut:
            waiting, self._cut_off = self._cut_off, []
            for data in waiting:
                self._pass_on(data)
            if self._held_bytes <= HELD_BYTES_MAX:
                self.go_on_reading()

    def go_on_reading(self) -> None:
        """Unless there is another reason to wait."""
        if self.pair.is_silent or self._is_cut:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        self._is_reset = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
