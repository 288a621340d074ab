"""Long work on the loop, in steps: between two of them everybody else has a turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from millpond.base.later import Later, done
from millpond.base.ports import Clock

T = TypeVar("T")

PAUSE_MS: Final = 1

Steps: TypeAlias = Generator["Later[Any] | None", Any, T]
"""It yields None where others should have a turn, and a `Later` to be given its value."""


def run_steps(clock: Clock, steps: Steps[T]) -> Later[T]:
    """What the steps return in the end; what one of them raises is the failure of the result."""
    result: Later[T] = Later()

    def take_step(resume: Callable[[Any], Later[Any] | None], value: Any) -> None:
        done(value).map(resume).then(wait, end)

    def wait(awaited: Later[Any] | None) -> None:
        if awaited is None:
            clock.call_later(PAUSE_MS, lambda: take_step(steps.send, None))
        else:
            awaited.then(partial(take_step, steps.send), partial(take_step, steps.throw))

    def end(failure: Exception) -> None:
        if isinstance(failure, StopIteration):
            result.finish(failure.value)
        else:
            result.fail(failure)

    take_step(steps.send, None)
    return result


def in_slices(everything: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(everything)
    while some := list(islice(left, size)):
        yield some
