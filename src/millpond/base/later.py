"""A value that comes later, when its condition holds, or the failure that prevents it.

Nothing below `node` ever blocks. Code that cannot answer at once returns a `Later`; its one reader passes `then` what
to do with the value. A failure that the reader does not handle is raised where it occurs: on the loop, where a bug
ends the process. An exception in a step of `map` or `chain` fails the result of that step, so that only its reader
sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from millpond.base.clock import Clock, Timer
from millpond.base.pending import Pending

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Exception)

_NOTHING: Any = object()
"""No value yet; None is a value."""


class Later(Pending[T]):
    """A `Pending` that hands its value to a callback."""

    __slots__ = ("_failure", "_on_end", "_on_failure", "_on_value", "_timer", "_value", "ended")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self.ended = False
        self._value: T = _NOTHING
        self._failure: Exception | None = None
        self._on_value: Callable[[T], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._on_end = on_end
        self._timer: Timer | None = None

    # For the side that owes the value.

    def finish(self, value: T) -> None:
        if self.ended:
            return
        self._end()
        if self._on_value is None:
            self._value = value
        else:
            self._on_value(value)

    def fail(self, failure: Exception) -> None:
        if self.ended:
            return
        self._end()
        if self._on_value is None:
            self._failure = failure
        else:
            self._report_failure(failure)

    def expire_after(self, clock: Clock, delay_ms: int, on_deadline: Callable[[], None]) -> None:
        """Call `on_deadline`, which should end it, unless it ends within `delay_ms`."""
        if not self.ended:
            self._timer = clock.call_later(delay_ms, on_deadline)

    # For its reader.

    def then(self, use: Callable[[T], None], on_failure: Callable[[Exception], None] | None = None) -> None:
        """Pass the value to `use`, at once if it has arrived. Without `on_failure` a failure is a bug and raised."""
        assert self._on_value is None, "a Later has one reader"
        self._on_value = use
        self._on_failure = on_failure
        if self._value is not _NOTHING:
            value, self._value = self._value, _NOTHING
            use(value)
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            self._report_failure(failure)

    def cancel(self) -> None:
        if not self.ended:
            self._end()
            self._on_value = self._on_failure = _ignore

    def map(self, change: Callable[[T], U]) -> Later[U]:
        """The value as changed by `change`; a failure passes through."""
        result: Later[U] = Later(self.cancel)

        def use(value: T) -> None:
            try:
                changed = change(value)
            except Exception as failure:
                result.fail(failure)
            else:
                result.finish(changed)

        self.then(use, result.fail)
        return result

    def chain(self, begin: Callable[[T], Later[U]]) -> Later[U]:
        """Start `begin` with the value and end as its result does; a failure passes through.

        If the reader cancels first, `begin` is never called.
        """
        waits_for: Later[Any] = self
        result: Later[U] = Later(lambda: waits_for.cancel())

        def use(value: T) -> None:
            nonlocal waits_for
            try:
                begun = waits_for = begin(value)
            except Exception as failure:
                result.fail(failure)
            else:
                begun.then(result.finish, result.fail)

        self.then(use, result.fail)
        return result

    def recover(self, kind: type[E], change: Callable[[E], U]) -> Later[T | U]:
        """A value in place of a failure of this kind; any other passes through."""
        result: Later[T | U] = Later(self.cancel)

        def on_failure(failure: Exception) -> None:
            if not isinstance(failure, kind):
                result.fail(failure)
                return
            try:
                changed = change(failure)
            except Exception as again:
                result.fail(again)
            else:
                result.finish(changed)

        self.then(result.finish, on_failure)
        return result

    def _report_failure(self, failure: Exception) -> None:
        if self._on_failure is None:
            raise failure
        self._on_failure(failure)

    def _end(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._on_end is not None:
            self._on_end()
            self._on_end = None


def done(value: T) -> Later[T]:
    """A `Later` that has its value."""
    later: Later[T] = Later()
    later.finish(value)
    return later


def failed(failure: Exception) -> Later[Any]:
    """A `Later` that has failed."""
    later: Later[Any] = Later()
    later.fail(failure)
    return later


def gather(parts: Sequence[Later[T]]) -> Later[list[T]]:
    """All values, in the order of the parts; fails as soon as one part does."""

    def cancel() -> None:
        for part in parts:
            part.cancel()

    whole: Later[list[T]] = Later(cancel)
    values: dict[int, T] = {}

    def taker(number: int) -> Callable[[T], None]:
        def take(value: T) -> None:
            values[number] = value
            if len(values) == len(parts):
                whole.finish([values[each] for each in range(len(parts))])

        return take

    if not parts:
        whole.finish([])
    for number, part in enumerate(parts):
        part.then(taker(number), whole.fail)
    return whole


def run_all(steps: Iterable[Callable[[], None]]) -> None:
    """Run every step, then raise the first exception that any of them raised."""
    bug: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            bug = bug or error
    if bug is not None:
        raise bug


def end_all(pending: Iterable[tuple[Pending[T], T]], failure: Exception | None = None) -> None:
    """Finish each with its value, or fail all of them; then raise the first exception that a reader raised."""
    bug: Exception | None = None
    for each, value in pending:
        try:
            if failure is None:
                each.finish(value)
            else:
                each.fail(failure)
        except Exception as error:
            bug = bug or error
    if bug is not None:
        raise bug


def _ignore(_: object) -> None: ...
