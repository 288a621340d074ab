"""Virtual time: one event queue, run in time order as fast as the machine can."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

WALL_START_MS = 1_700_000_000_000
"""An arbitrary fixed time; in 2023, so that timestamps look realistic."""

EVENTS_MAX = 10_000_000
"""A run with more events is assumed to loop forever."""


class SimTimer:
    """A scheduled event."""

    __slots__ = ("callback", "cancelled", "moment")

    def __init__(self, moment: int, callback: Callable[[], None]) -> None:
        self.moment = moment
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """The clock port over an event queue.

    Events at the same time run in scheduling order. With `shuffle` the seed orders timers at the same time;
    `call_soon` stays in order, as in every real event loop.
    """

    def __init__(self, seed: int = 0, *, shuffle: bool = False) -> None:
        self.now_ms = 0
        self.events_run = 0
        self._wall_offset_ms = WALL_START_MS
        self._random = Random(seed) if shuffle else None
        self._asked = 0
        self._queue: list[tuple[int, float, int, SimTimer]] = []
        """Ordered by time, then a random number, then scheduling order, so that timers are never compared."""

    # The port

    def wall_ms(self) -> int:
        return self.now_ms + self._wall_offset_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_us(self) -> int:
        return self.now_ms * 1_000

    def boottime_ms(self) -> int:
        return self.now_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._add(self.now_ms, -1.0 if self._random else 0.0, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> SimTimer:
        luck = self._random.random() if self._random else 0.0
        return self._add(self.now_ms + max(delay_ms, 0), luck, callback)

    def _add(self, moment: int, luck: float, callback: Callable[[], None]) -> SimTimer:
        timer = SimTimer(moment, callback)
        self._push(timer, luck)
        return timer

    def _push(self, timer: SimTimer, luck: float) -> None:
        self._asked += 1
        heapq.heappush(self._queue, (timer.moment, luck, self._asked, timer))

    def put_off(self, timer: SimTimer, moment: int) -> None:
        """Run an expired timer again later; its holder can still cancel it."""
        timer.moment = max(moment, self.now_ms)
        self._push(timer, self._random.random() if self._random else 0.0)

    # For tests

    def jump_wall(self, by_ms: int) -> None:
        """Move the wall clock forward or back, as an operator or NTP would; monotonic time is not affected."""
        self._wall_offset_ms += by_ms

    def pending(self) -> int:
        """How many events are scheduled."""
        return sum(not entry[-1].cancelled for entry in self._queue)

    def step(self) -> bool:
        """Advance to the next event and run it. False when there is none."""
        while self._queue:
            timer = heapq.heappop(self._queue)[-1]
            if timer.cancelled:
                continue
            self.now_ms = timer.moment
            self.events_run += 1
            timer.callback()
            return True
        return False

    def run_until(self, condition: Callable[[], bool] | None = None, *, within_ms: int = 60_000) -> bool:
        """Run events until `condition` holds; False if it does not within this virtual time, or no event is left.

        Without a condition, run everything due in that time. Idle time passes as well.
        """
        deadline = self.now_ms + within_ms
        events_max = self.events_run + EVENTS_MAX
        while condition is None or not condition():
            if not self._due_by(deadline):
                self.now_ms = deadline
                return condition is not None and condition()
            self.step()
            assert self.events_run < events_max, f"still busy after {EVENTS_MAX} events: something spins"
        return True

    def run_for(self, duration_ms: int) -> None:
        """Run everything due in this time."""
        self.run_until(within_ms=duration_ms)

    def _due_by(self, deadline: int) -> bool:
        while self._queue and self._queue[0][-1].cancelled:
            heapq.heappop(self._queue)
        return bool(self._queue) and self._queue[0][0] <= deadline
