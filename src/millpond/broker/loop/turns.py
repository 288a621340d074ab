"""Fairness between connections: a burst of requests on one of them does not hold up the others.

The first few requests of a read are served at once, and most clients never send more. The rest queue here, and the
whole queue shares a small part of each turn of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millpond.base.later import Later, done
from millpond.base.ports import Clock

if TYPE_CHECKING:
    from millpond.broker.loop.steps import Steps

T = TypeVar("T")

TURN_US: Final = 500
"""How long the requests of one connection are served before others get a turn."""

ROUND_US: Final = 2_000
"""How long the queue is served before the loop polls for I/O again."""


class Turns:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def is_over(self, since_us: int) -> bool:
        """Whether a turn that began at `since_us` has used up its time."""
        return self._clock.monotonic_us() - since_us > TURN_US

    def wait(self, go_on: Callable[[], None]) -> None:
        """Queue `go_on`; it may queue itself again."""
        self._waiting.append(go_on)
        if not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._round)

    def run(self, steps: Steps[T], on_step: Callable[[int], None]) -> Later[T]:
        """The return value of the steps, or the failure of one of them; each step waits for its turn.

        `on_step` is called with the microseconds that each step took. Cancelling the result does not stop the steps.
        """
        result: Later[T] = Later()

        def timed(resume: Callable[[Any], Later[Any] | None], value: Any) -> Later[Any] | None:
            began_us = self._clock.monotonic_us()
            try:
                return resume(value)
            finally:
                on_step(self._clock.monotonic_us() - began_us)

        def take_step(resume: Callable[[Any], Later[Any] | None], value: Any) -> None:
            done(value).map(partial(timed, resume)).then(go_on, end)

        def go_on(pending: Later[Any] | None) -> None:
            if pending is None:
                self.wait(partial(take_step, steps.send, None))
            else:
                pending.then(partial(take_step, steps.send), partial(take_step, steps.throw))

        def end(failure: Exception) -> None:
            if isinstance(failure, StopIteration):
                result.finish(failure.value)
            else:
                result.fail(failure)

        self.wait(partial(take_step, steps.send, None))
        return result

    def _round(self) -> None:
        waiting, clock = self._waiting, self._clock
        until_us = clock.monotonic_us() + ROUND_US
        # Not those that queue again during this round: the loop must poll for I/O in between.
        for _ in range(len(waiting)):
            waiting.popleft()()
            if clock.monotonic_us() > until_us:
                break
        self._is_due = bool(waiting)
        if waiting:
            clock.call_soon(self._round)
