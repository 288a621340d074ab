"""Callers that arrive while an operation is running share its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from millpond.base.later import Later, run_all

T = TypeVar("T")


class SharedRun(Generic[T]):
    """Starts `begin` for the first caller; callers before its end get the same result."""

    def __init__(self, begin: Callable[[], Later[T]]) -> None:
        self._begin = begin
        self._pending: dict[Later[T], None] = {}
        self._is_running = False

    def ask(self) -> Later[T]:
        # A cancelled caller is dropped at once: a run that hangs must not accumulate them.
        pending: Later[T] = Later(lambda: self._forget(pending))
        self._pending[pending] = None
        if not self._is_running:
            self._is_running = True
            self._begin().then(self._finish, self._fail)
        return pending

    def _forget(self, pending: Later[T]) -> None:
        self._pending.pop(pending, None)

    def _finish(self, value: T) -> None:
        run_all(partial(each.finish, value) for each in self._end())

    def _fail(self, failure: Exception) -> None:
        run_all(partial(each.fail, failure) for each in self._end())

    def _end(self) -> dict[Later[T], None]:
        self._is_running = False
        pending, self._pending = self._pending, {}
        return pending
