"""How long the event loop keeps everything waiting: the delay of a timer that does nothing else.

The longest stall is a gauge; long ones are logged, with a limited rate and their number. The line includes how long
the loop was runnable without getting a CPU during the longest stall: a large share means that the machine is
overloaded, otherwise the node or its disk is the cause.
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
"""Stalls from this length on are logged: heartbeats and health checks begin to be late."""

QUIET_MS: Final = 10_000
"""At most one line in this time."""


SCHEDSTAT_BYTES: Final = 128


class CoreWait:
    """How long the creating thread has waited for a CPU so far, in milliseconds, as Linux counts it."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:
            # Not Linux, or scheduler statistics are off.
            return

    def __call__(self) -> int | None:
        """None if unknown."""
        if self._descriptor is None:
            return None
        try:
            # Time on a CPU, time waiting for one, and the number of time slices.
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
        """All delays, for metrics."""
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
            facts = {"stall_ms": self._untold_longest_ms, "times": self._untold}
            if self._untold_without_core_ms is not None:
                facts["cpu_starved_ms"] = self._untold_without_core_ms
            self._journal("event loop stalled", **facts)
            self._untold = self._untold_longest_ms = 0
            self._told_ms = now_ms
        self.start()


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
