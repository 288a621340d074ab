"""One run for all who ask while it is under way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from millpond.base.later import Later, run_all

T = TypeVar("T")


class SharedRun(Generic[T]):
    """What `begin` begins is begun for the first who asks; whoever asks before it has ended gets the same."""

    def __init__(self, begin: Callable[[], Later[T]]) -> None:
        self._begin = begin
        self._waiting: dict[Later[T], None] = {}
        self._is_running = False

    def ask(self) -> Later[T]:
        # Whoever is gone is forgotten at once: a run that stands still must not gather those who gave up.
        asked: Later[T] = Later(lambda: self._forget(asked))
        self._waiting[asked] = None
        if not self._is_running:
            self._is_running = True
            self._begin().then(self._finish, self._fail)
        return asked

    def _forget(self, asked: Later[T]) -> None:
        self._waiting.pop(asked, None)

    def _finish(self, value: T) -> None:
        run_all(partial(each.finish, value) for each in self._end())

    def _fail(self, failure: Exception) -> None:
        run_all(partial(each.fail, failure) for each in self._end())

    def _end(self) -> dict[Later[T], None]:
        self._is_running = False
        waiting, self._waiting = self._waiting, {}
        return waiting
