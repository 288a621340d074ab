"""Reports coordinator requests that stay unanswered for a long time.

One was once answered after 70 s for no known reason; the report names the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from millpond.base.pending import Pending
from millpond.base.ports import Clock

OVERDUE_MS = 10_000
"""A request that has been pending for this long is reported."""


class _Request(NamedTuple):
    reply: Pending[Any]
    since_ms: int
    name: str
    client_id: str


class Unanswered:
    """Calls `on_overdue` with the name and client id of each request that is overdue."""

    def __init__(self, clock: Clock, on_overdue: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._on_overdue = on_overdue
        self._requests: deque[_Request] = deque()
        self._is_timer_set = False

    def watch(self, reply: Pending[Any], request: str, client_id: str) -> None:
        while self._requests and self._requests[0].reply.ended:
            self._requests.popleft()
        self._requests.append(_Request(reply, self._clock.monotonic_ms(), request, client_id))
        self._check_after(OVERDUE_MS)

    def _check_after(self, delay_ms: int) -> None:
        if not self._is_timer_set:
            self._is_timer_set = True
            self._clock.call_later(delay_ms, self._check)

    def _check(self) -> None:
        self._is_timer_set = False
        now_ms = self._clock.monotonic_ms()
        while self._requests:
            oldest = self._requests[0]
            pending_ms = now_ms - oldest.since_ms
            if not oldest.reply.ended and pending_ms < OVERDUE_MS:
                self._check_after(OVERDUE_MS - pending_ms)
                return
            self._requests.popleft()
            if not oldest.reply.ended:
                self._on_overdue(oldest.name, oldest.client_id)
