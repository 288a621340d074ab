"""How long the loop keeps everybody waiting: the delay of a timer that does nothing else.

A loop that stands still answers nobody. The longest stand is kept as a gauge; long ones are told to the operator, at
most one line in a while with the number of them, and how much of the longest one the loop was ready to run and had no
core: then the machine has too much to do, else the node or its disk is to blame.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from millpond.base.histogram import Histogram
from millpond.base.ports import Clock
from millpond.broker.loop.journal import Journal

INTERVAL_MS: Final = 50
STALL_MS: Final = 500
"""From this long on a stand is told of: heartbeats and health checks begin to be late."""

QUIET_MS: Final = 10_000
"""No more than one line in so much time."""


SCHEDSTAT_BYTES: Final = 128


class CoreWait:
    """How long the thread that made this has waited for a core so far, in milliseconds: as Linux counts it."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:
            # Another system, or one that does not count.
            return

    def __call__(self) -> int | None:
        """None where nobody knows."""
        if self._descriptor is None:
            return None
        try:
            # Time on a core, time spent waiting for one, and how often it had one.
            _, waited_ns, _ = os.pread(self._descriptor, SCHEDSTAT_BYTES, 0).split()
        except (OSError, ValueError):
            return None
        return int(waited_ns) // 1_000_000

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LoopDelay:
    def __init__(self, clock: Clock, journal: Journal, core_wait: Callable[[], int | None]) -> None:
        self.delays = Histogram()
        """All of them, for whoever looks later."""
        self.last_ms = 0
        self.longest_ms = 0
        self.stalls_total = 0
        self._untold = 0
        self._untold_longest_ms = 0
        self._untold_without_core_ms: int | None = None
        self._told_ms: int | None = None
        self._clock = clock
        self._journal = journal
        self._core_wait = core_wait

    def start(self) -> None:
        """Measure from now on."""
        due_ms = self._clock.monotonic_ms() + INTERVAL_MS
        waited_ms = self._core_wait()
        self._clock.call_later(INTERVAL_MS, lambda: self._measure(due_ms, waited_ms))

    def _measure(self, due_ms: int, waited_before_ms: int | None) -> None:
        now_ms = self._clock.monotonic_ms()
        self.last_ms = max(now_ms - due_ms, 0)
        self.delays.observe(self.last_ms * 1_000)
        self.longest_ms = max(self.longest_ms, self.last_ms)
        if self.last_ms >= STALL_MS:
            self.stalls_total += 1
            self._untold += 1
            if self.last_ms >= self._untold_longest_ms:
                self._untold_longest_ms = self.last_ms
                self._untold_without_core_ms = _difference(waited_before_ms, self._core_wait())
        if self._untold and (self._told_ms is None or now_ms - self._told_ms >= QUIET_MS):
            facts = {"longest_ms": self._untold_longest_ms, "times": self._untold}
            if self._untold_without_core_ms is not None:
                facts["without_a_core_ms"] = self._untold_without_core_ms
            self._journal("the node stood still", **facts)
            self._untold = self._untold_longest_ms = 0
            self._told_ms = now_ms
        self.start()


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
