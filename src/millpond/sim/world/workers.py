"""Worker threads simulated in virtual time: each job takes a seeded time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from millpond.base.later import Later
from millpond.base.ports import Clock

T = TypeVar("T")


class SimWorkers:
    """Jobs start after a random delay and complete after another, so they overtake each other as threads do.

    A `PowerCut` in a job propagates to the caller of the clock: the machine is gone, and nothing completes.
    """

    def __init__(self, clock: Clock, seed: int | str = 0, delay_ms_max: int = 5) -> None:
        self.delay_ms_max = delay_ms_max
        self.stuck_share = 0.0
        self.stuck_ms = 0
        """The share of jobs that are stuck and for how long, whatever the usual delay."""
        self._clock = clock
        self._random = Random(seed)

    def run(self, job: Callable[[], T]) -> Later[T]:
        later: Later[T] = Later()

        def work() -> None:
            try:
                result = job()
            except Exception as error:
                failure = error
                self._later(lambda: later.fail(failure))
            else:
                self._later(lambda: later.finish(result))

        self._later(work)
        return later

    def _later(self, callback: Callable[[], None]) -> None:
        delay_ms = self._random.randint(0, self.delay_ms_max)
        if self.stuck_share and self._random.random() < self.stuck_share:
            delay_ms = self.stuck_ms
        self._clock.call_later(delay_ms, callback)
