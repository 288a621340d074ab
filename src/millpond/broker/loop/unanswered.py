"""Answers of a coordinator that do not come. Nobody has seen why one took 70 s once; the next one tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from millpond.base.ports import Clock

OVERDUE_MS = 10_000
"""From when on a request without an answer is told to people."""


class Awaited(Protocol):
    """An answer to come: a `Later`, or what does as well."""

    @property
    def ended(self) -> bool: ...


class _Asked(NamedTuple):
    """A request whose answer has not come yet."""

    reply: Awaited
    since_ms: int
    request: str
    client_id: str


class Unanswered:
    """Requests that wait; `on_overdue` hears of one, and whose, that has no answer after a long time."""

    def __init__(self, clock: Clock, on_overdue: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._on_overdue = on_overdue
        self._asked: deque[_Asked] = deque()
        self._is_watching = False

    def watch(self, reply: Awaited, request: str, client_id: str) -> None:
        while self._asked and self._asked[0].reply.ended:
            self._asked.popleft()
        self._asked.append(_Asked(reply, self._clock.monotonic_ms(), request, client_id))
        self._look_later(OVERDUE_MS)

    def _look_later(self, within_ms: int) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._clock.call_later(within_ms, self._look)

    def _look(self) -> None:
        self._is_watching = False
        now_ms = self._clock.monotonic_ms()
        while self._asked:
            oldest = self._asked[0]
            waits_ms = now_ms - oldest.since_ms
            if not oldest.reply.ended and waits_ms < OVERDUE_MS:
                self._look_later(OVERDUE_MS - waits_ms)
                return
            self._asked.popleft()
            if not oldest.reply.ended:
                self._on_overdue(oldest.request, oldest.client_id)
