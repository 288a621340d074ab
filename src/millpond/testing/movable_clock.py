"""The clock of a node in a test, which the test may move forward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millpond.node.clock import LoopClock


class MovableClock(LoopClock):
    """Real time plus what it was moved by. Everything runs on the loop."""

    __slots__ = ("_timers", "ahead_ms", "event_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead_ms: int) -> None:
        super().__init__(loop)
        self.event_loop = loop
        self.ahead_ms = ahead_ms
        self._timers: dict[MovableTimer, None] = {}

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.ahead_ms * 1000

    def boottime_ms(self) -> int:
        return super().boottime_ms() + self.ahead_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> MovableTimer:  # type: ignore[override]
        timer = MovableTimer(self, self.monotonic_ms() + delay_ms, callback)
        self._timers[timer] = None
        return timer

    def forget(self, timer: MovableTimer) -> None:
        self._timers.pop(timer, None)

    def advance(self, ms: int) -> None:
        """Move forward. Timers that are due then run soon, in their order."""
        self.ahead_ms += ms
        for timer in sorted(self._timers, key=lambda each: each.due_ms):
            timer.arm()


class MovableTimer:
    """A timer that runs when its clock has reached the time."""

    __slots__ = ("_callback", "_clock", "_handle", "due_ms")

    def __init__(self, clock: MovableClock, due_ms: int, callback: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self._clock = clock
        self._callback = callback
        self._handle: asyncio.Handle | None = None
        self.arm()

    def arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        left_ms = self.due_ms - self._clock.monotonic_ms()
        loop = self._clock.event_loop
        self._handle = loop.call_later(left_ms / 1000, self._run) if left_ms > 0 else loop.call_soon(self._run)

    def cancel(self) -> None:
        self._clock.forget(self)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._clock.forget(self)
        self._callback()
