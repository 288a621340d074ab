"""Whoever asks much waits for whoever asks little: connections with many requests at once are served in turns.

The first few requests of a read are served at once, which is all that most clients ever send. What is left waits
here, and all that wait share a small part of each turn of the loop.
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
"""So long the requests of one connection are served before it is the others' turn."""

ROUND_US: Final = 2_000
"""So long those that wait here are served before the loop looks for others."""


class Turns:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def is_over(self, since_us: int) -> bool:
        """Whether a turn that began then is over."""
        return self._clock.monotonic_us() - since_us > TURN_US

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` comes in its turn. It may wait again."""
        self._waiting.append(go_on)
        if not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._round)

    def run(self, steps: Steps[T], on_step: Callable[[int], None]) -> Later[T]:
        """What the steps return in the end, or the failure of one of them: each of them is taken in its turn.

        `on_step` hears how many microseconds of the loop it took. They are taken to the end whoever waits for it.
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

        def go_on(awaited: Later[Any] | None) -> None:
            if awaited is None:
                self.wait(partial(take_step, steps.send, None))
            else:
                awaited.then(partial(take_step, steps.send), partial(take_step, steps.throw))

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
        # Not again those who come back: the loop has to look for others in between.
        for _ in range(len(waiting)):
            waiting.popleft()()
            if clock.monotonic_us() > until_us:
                break
        self._is_due = bool(waiting)
        if waiting:
            clock.call_soon(self._round)
