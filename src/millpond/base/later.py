"""The one way to be told later: a value that comes when its condition holds, or the failure that prevents it.

Nothing below `node` ever blocks. Whoever cannot answer at once returns a `Later`; its one reader says with `then`
what is to happen. A failure that the reader does not expect is raised where it arises: on the loop, where a bug ends
the process. What a step of `map` or `chain` raises is the failure of the result, so that it meets the reader whom it
concerns and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from millpond.base.clock import Clock, Timer

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Exception)

_NOTHING: Any = object()
"""No value yet: None may be one."""


class Later(Generic[T]):
    """A value to come. Ended at most once: by a value, by a failure, or cancelled by its reader."""

    __slots__ = ("_failure", "_on_end", "_on_failure", "_on_value", "_timer", "_value", "ended")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self.ended = False
        self._value: T = _NOTHING
        self._failure: Exception | None = None
        self._on_value: Callable[[T], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._on_end = on_end
        self._timer: Timer | None = None

    # For whoever has promised the value.

    def finish(self, value: T) -> None:
        """The value is there. Later calls do nothing: whoever came first has ended it."""
        if self.ended:
            return
        self._end()
        if self._on_value is None:
            self._value = value
        else:
            self._on_value(value)

    def fail(self, failure: Exception) -> None:
        """The value will never come. As `finish`, only the first end counts."""
        if self.ended:
            return
        self._end()
        if self._on_value is None:
            self._failure = failure
        else:
            self._tell_failure(failure)

    def expire_after(self, clock: Clock, delay_ms: int, on_deadline: Callable[[], None]) -> None:
        """Call `on_deadline` after `delay_ms` unless it has ended by then; it should end it."""
        if not self.ended:
            self._timer = clock.call_later(delay_ms, on_deadline)

    # For the one who reads it.

    def then(self, use: Callable[[T], None], on_failure: Callable[[Exception], None] | None = None) -> None:
        """Hand the value to `use`, now if it is already there. Without `on_failure` a failure is a bug and raised."""
        assert self._on_value is None, "it has one reader"
        self._on_value = use
        self._on_failure = on_failure
        if self._value is not _NOTHING:
            value, self._value = self._value, _NOTHING
            use(value)
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            self._tell_failure(failure)

    def cancel(self) -> None:
        """Nobody listens any more: forget the condition and the deadline."""
        if not self.ended:
            self._end()
            self._on_value = self._on_failure = _ignore

    def map(self, change: Callable[[T], U]) -> Later[U]:
        """What `change` makes of the value; a failure goes through."""
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
        """Go on with what `begin` starts once the value is there; a failure goes through.

        If the reader cancels before that, it is not begun.
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
        """A value in place of a failure of this kind; any other goes through."""
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

    def _tell_failure(self, failure: Exception) -> None:
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
    """One whose value is there already."""
    later: Later[T] = Later()
    later.finish(value)
    return later


def failed(failure: Exception) -> Later[Any]:
    """One that has failed already."""
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
    """Take every step, whatever another one raises: a bug is raised once all were taken."""
    bug: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            bug = bug or error
    if bug is not None:
        raise bug


def end_all(parked: Iterable[tuple[Later[T], T]], failure: Exception | None = None) -> None:
    """Give everyone who waits his value, or all of them the failure. A reader's bug is raised once all were told."""
    bug: Exception | None = None
    for later, value in parked:
        try:
            if failure is None:
                later.finish(value)
            else:
                later.fail(failure)
        except Exception as error:
            bug = bug or error
    if bug is not None:
        raise bug


def _ignore(_: object) -> None:
    """Nobody listens."""
