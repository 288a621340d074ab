"""Long work on the loop, in steps: after each, everything else runs for at least four times as long."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from millpond.base.later import Later, done, gather
from millpond.base.ports import Clock

T = TypeVar("T")

PAUSE_MS: Final = 1
"""The shortest pause after a step."""

PAUSE_SHARE: Final = 4
"""A pause lasts this many times as long as its step, so that the work takes at most a fifth of the loop."""

PAUSE_MS_MAX: Final = 50
"""A step that took long only because the process had no core does not delay the next one for long."""

Steps: TypeAlias = Generator["Later[Any] | None", Any, T]
"""Yields None where other work may run, or a `Later` to wait for its value."""


def run_steps(clock: Clock, steps: Steps[T], on_step: Callable[[int], None] | None = None) -> Later[T]:
    """The return value of the steps; an exception in one of them fails the result.

    `on_step` is called with the microseconds that each step took.
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
            steps.close()
            return
        done(value).map(partial(timed, resume)).then(wait, end)

    def wait(pending: Later[Any] | None) -> None:
        if pending is None:
            clock.call_later(pause_ms, lambda: take_step(steps.send, None))
        else:
            pending.then(partial(take_step, steps.send), partial(take_step, steps.throw))

    def end(failure: Exception) -> None:
        if isinstance(failure, StopIteration):
            result.finish(failure.value)
        else:
            result.fail(failure)

    take_step(steps.send, None)
    return result


def finished(steps: Steps[T]) -> T | Later[T]:
    """Run all steps at once, for work that turns out to be short."""
    try:
        pending = next(steps)
        while pending is None:
            pending = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value

    def resume(value: Any) -> Later[T]:
        try:
            following = steps.send(value)
        except StopIteration as end:
            return done(end.value)
        raise AssertionError(f"only the last step may yield a Later: {following}")

    return pending.chain(resume)


def ask_in_steps(clock: Clock, questions: Iterable[Callable[[], Later[T]]], size: int) -> Later[list[T]]:
    """All answers, in the order of the questions, of which `size` are asked per step."""

    def steps() -> Steps[list[T]]:
        pending: list[Later[T]] = []
        for some in in_slices(questions, size):
            if pending:
                yield None
            pending += [ask() for ask in some]
        answers: list[T] = yield gather(pending)
        return answers

    return run_steps(clock, steps())


def in_slices(everything: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(everything)
    while some := list(islice(left, size)):
        yield some
