"""A timer by the wall clock, which may jump either way, and which goes on while the machine is suspended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millpond.coordinators.shares.state_batches import NO_TIME

if TYPE_CHECKING:
    from millpond.base.clock import Clock, Timer

CHECK_MS: Final = 1_000
"""How often it looks at the wall clock: after a jump or a suspension, it is late by this much."""


class DueTimer:
    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        """Sets the timer again. It may be called too early."""
        self._timer: Timer | None = None
        self._at_ms = 0

    def set(self, due_ms: int) -> None:
        """Call back at this time, or earlier if that was wanted before."""
        if due_ms == NO_TIME:
            return
        left_ms = min(max(due_ms - self._clock.wall_ms(), 0), CHECK_MS)
        at_ms = self._clock.monotonic_ms() + left_ms
        if self._timer is not None:
            if self._at_ms <= at_ms:
                return
            self._timer.cancel()
        self._at_ms = at_ms
        self._timer = self._clock.call_later(left_ms, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._on_due()
