"""Which limits of this node somebody has met: each is told in the journal, though not each time, and counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.ports import Clock

if TYPE_CHECKING:
    from millpond.broker.loop.journal import Journal

TELL_MS: Final = 10_000
"""One line for each limit in this time: whoever is refused comes again."""


class MetLimits:
    def __init__(self, clock: Clock, journal: Journal) -> None:
        self.counts: Counter[str] = Counter()
        """How often, by the name of the setting or quota."""
        self._clock = clock
        self._journal = journal
        self._told_ms: dict[str, int] = {}

    def note(self, limit: str, most: float, **facts: object) -> None:
        """Somebody was refused because of it."""
        self.counts[limit] += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms.get(limit, -TELL_MS) >= TELL_MS:
            self._told_ms[limit] = now_ms
            self._journal("a limit was met, and somebody refused", limit=f"{limit}={most:.12g}", **facts)

    def note_refused(self, refused: Refused | None, **facts: object) -> None:
        """The same if that is why."""
        if isinstance(refused, LimitMet):
            self.note(refused.limit, refused.most, **facts)

    def check(self, limit: str, most: int, count: int, what: str) -> None:
        """Refused if there are as many already; the reason names the setting."""
        if count >= most:
            self.note(limit, most)
            raise Refused(ErrorCode.POLICY_VIOLATION, f"there are {count} {what}, and {limit}={most} allows no more")
