"""An answer that comes later: handlers never block, they return a `Wait` and finish it when its condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from millpond.base.ports import Clock, Timer

R = TypeVar("R")


class Wait(Generic[R]):
    """A parked reply. Ended at most once: by its condition, by its deadline, or cancelled by its reader."""

    __slots__ = ("_deliver", "_on_end", "_reply", "_timer", "ended")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self.ended = False
        self._reply: R | None = None
        self._deliver: Callable[[R], None] | None = None
        self._on_end = on_end
        self._timer: Timer | None = None

    def finish(self, reply: R) -> None:
        """Answer with `reply`. Later calls do nothing: whoever came first has answered."""
        if self.ended:
            return
        self._end()
        if self._deliver is None:
            self._reply = reply
        else:
            self._deliver(reply)

    def cancel(self) -> None:
        """Nobody listens any more: forget the condition and the deadline."""
        if not self.ended:
            self._end()

    def expire_after(self, clock: Clock, delay_ms: int, on_deadline: Callable[[], None]) -> None:
        """Call `on_deadline` after `delay_ms` unless the wait has ended by then; it should finish the wait."""
        if not self.ended:
            self._timer = clock.call_later(delay_ms, on_deadline)

    def then(self, deliver: Callable[[R], None]) -> None:
        """Hand the reply to `deliver`, now if it is already there."""
        assert self._deliver is None, "a wait has one reader"
        self._deliver = deliver
        if self._reply is not None:
            reply, self._reply = self._reply, None
            deliver(reply)

    def _end(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._on_end is not None:
            self._on_end()
            self._on_end = None
