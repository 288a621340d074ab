"""Counts the refusals of each limit of this node, and logs them at a limited rate."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.ports import Clock

if TYPE_CHECKING:
    from millpond.broker.loop.journal import Journal

TELL_MS: Final = 10_000
"""At most one log line per limit in this time, because refused clients retry."""


class MetLimits:
    def __init__(self, clock: Clock, journal: Journal) -> None:
        self.counts: Counter[str] = Counter()
        """Refusals by the name of the setting or quota."""
        self._clock = clock
        self._journal = journal
        self._told_ms: dict[str, int] = {}

    def note(self, limit: str, most: float, **facts: object) -> None:
        """Count a client that was refused because of this limit."""
        self.counts[limit] += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms.get(limit, -TELL_MS) >= TELL_MS:
            self._told_ms[limit] = now_ms
            self._journal("a limit was met, and somebody refused", limit=f"{limit}={most:.12g}", **facts)

    def note_refused(self, refused: Refused | None, **facts: object) -> None:
        """Count the refusal if a limit caused it."""
        if isinstance(refused, LimitMet):
            self.note(refused.limit, refused.most, **facts)

    def check(self, limit: str, most: int, count: int, what: str) -> None:
        """Raise Refused if the limit is reached; the message names the setting."""
        if count >= most:
            self.note(limit, most)
            raise Refused(ErrorCode.POLICY_VIOLATION, f"there are {count} {what}, and {limit}={most} allows no more")
