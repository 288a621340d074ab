"""How long the loop keeps everybody waiting: the delay of a timer that does nothing else.

A loop that stands still answers nobody. The longest stand is kept as a gauge; long ones are told to the operator, at
most one line in a while with the number of them.
"""

from __future__ import annotations

from typing import Final

from millpond.base.ports import Clock
from millpond.broker.housekeeping import Journal

INTERVAL_MS: Final = 50
STALL_MS: Final = 500
"""From this long on a stand is told of: heartbeats and health checks begin to be late."""

QUIET_MS: Final = 10_000
"""No more than one line in so much time."""


class LoopDelay:
    def __init__(self, clock: Clock, journal: Journal) -> None:
        self.last_ms = 0
        self.longest_ms = 0
        self.stalls_total = 0
        self._untold = 0
        self._untold_longest_ms = 0
        self._told_ms: int | None = None
        self._clock = clock
        self._journal = journal

    def start(self) -> None:
        """Measure from now on."""
        due_ms = self._clock.monotonic_ms() + INTERVAL_MS
        self._clock.call_later(INTERVAL_MS, lambda: self._measure(due_ms))

    def _measure(self, due_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        self.last_ms = max(now_ms - due_ms, 0)
        self.longest_ms = max(self.longest_ms, self.last_ms)
        if self.last_ms >= STALL_MS:
            self.stalls_total += 1
            self._untold += 1
            self._untold_longest_ms = max(self._untold_longest_ms, self.last_ms)
        if self._untold and (self._told_ms is None or now_ms - self._told_ms >= QUIET_MS):
            self._journal("the node stood still", longest_ms=self._untold_longest_ms, times=self._untold)
            self._untold = self._untold_longest_ms = 0
            self._told_ms = now_ms
        self.start()
