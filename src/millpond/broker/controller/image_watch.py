"""Lets requests wait until this node's image shows a change that the controller has committed."""

from __future__ import annotations

from collections.abc import Callable

from millpond.base.later import Later, done
from millpond.base.ports import Clock


class ImageWatch:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Later[None], Callable[[], bool]] = {}

    def until(self, is_shown: Callable[[], bool], within_ms: int) -> Later[None]:
        """Ends as soon as `is_shown` returns True, or after `within_ms`."""
        if is_shown():
            return done(None)
        later: Later[None] = Later(lambda: self._forget(later))
        self._waiting[later] = is_shown
        later.expire_after(self._clock, within_ms, lambda: later.finish(None))
        return later

    def _forget(self, later: Later[None]) -> None:
        self._waiting.pop(later, None)

    def on_change(self) -> None:
        for later in [later for later, is_shown in self._waiting.items() if is_shown()]:
            later.finish(None)
