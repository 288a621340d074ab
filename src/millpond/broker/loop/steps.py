"""Long work on the loop, in steps: between two of them everybody else has a turn, four times as long as the step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from millpond.base.later import Later, done, gather
from millpond.base.ports import Clock

T = TypeVar("T")

PAUSE_MS: Final = 1
"""At least so long nothing of it is done after a step."""

PAUSE_SHARE: Final = 4
"""And at least so many times as long as the step took: it never has more than a fifth of the loop."""

PAUSE_MS_MAX: Final = 50
"""A step that took long because the machine had no core for it is no reason to wait for ever."""

Steps: TypeAlias = Generator["Later[Any] | None", Any, T]
"""It yields None where others should have a turn, and a `Later` to be given its value."""


def run_steps(clock: Clock, steps: Steps[T], on_step: Callable[[int], None] | None = None) -> Later[T]:
    """What the steps return in the end; what one of them raises is the failure of the result.

    `on_step` hears how many microseconds of the loop each of them took.
    """
    result: Later[T] = Later()
    pause_ms = PAUSE_MS

    def timed(resume: Callable[[Any], Later[Any] | None], value: Any) -> Later[Any] | None:
        nonlocal pause_ms
        began_us = clock.monotonic_us()
        try:
            return resume(value)
        finally:
            took_us = clock.monotonic_us() - began_us
            pause_ms = min(max(took_us * PAUSE_SHARE // 1000, PAUSE_MS), PAUSE_MS_MAX)
            if on_step is not None:
                on_step(took_us)

    def take_step(resume: Callable[[Any], Later[Any] | None], value: Any) -> None:
        if result.ended:
            # Nobody waits for it any more.
            steps.close()
            return
        done(value).map(partial(timed, resume)).then(wait, end)

    def wait(awaited: Later[Any] | None) -> None:
        if awaited is None:
            clock.call_later(pause_ms, lambda: take_step(steps.send, None))
        else:
            awaited.then(partial(take_step, steps.send), partial(take_step, steps.throw))

    def end(failure: Exception) -> None:
        if isinstance(failure, StopIteration):
            result.finish(failure.value)
        else:
            result.fail(failure)

    take_step(steps.send, None)
    return result


def finished(steps: Steps[T]) -> T | Later[T]:
    """What the steps return, all of them taken at once: for work that turns out to be little."""
    try:
        awaited = next(steps)
        while awaited is None:
            awaited = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value

    def resume(value: Any) -> Later[T]:
        try:
            following = steps.send(value)
        except StopIteration as end:
            return done(end.value)
        raise AssertionError(f"only the last step may wait for something: {following}")

    return awaited.chain(resume)


def ask_in_steps(clock: Clock, questions: Iterable[Callable[[], Later[T]]], size: int) -> Later[list[T]]:
    """All answers, in the order of the questions; so many are asked in one step."""

    def steps() -> Steps[list[T]]:
        asked: list[Later[T]] = []
        for some in in_slices(questions, size):
            if asked:
                yield None
            asked += [ask() for ask in some]
        answers: list[T] = yield gather(asked)
        return answers

    return run_steps(clock, steps())


def in_slices(everything: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(everything)
    while some := list(islice(left, size)):
        yield some
