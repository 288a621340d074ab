"""The clock of one simulated host: it drifts, jumps, sleeps, and stops while its process is paused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.sim.world.clock import SimTimer, VirtualClock


@dataclass(slots=True)
class Oscillator:
    """What belongs to the machine and survives its processes."""

    wall_offset_ms: int = 0
    """How far its wall clock is ahead of the world's."""
    rate: float = 1.0
    """How many of its milliseconds pass in one of the world's."""
    slept_ms: int = 0
    """For how long it was suspended so far: time that its monotonic clock has not counted."""


class HostClock:
    """The clock port of one host between a start and a stop; what it runs ends with the host."""

    def __init__(self, clock: VirtualClock, oscillator: Oscillator) -> None:
        self._clock = clock
        self._oscillator = oscillator
        self._stopped = False
        self._held: list[Callable[[], None]] | None = None
        """What came due while paused; None while it runs."""

    # The port

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._oscillator.wall_offset_ms

    def monotonic_ms(self) -> int:
        oscillator = self._oscillator
        passed = self._clock.now_ms - oscillator.slept_ms
        return passed if oscillator.rate == 1.0 else int(passed * oscillator.rate)

    def monotonic_us(self) -> int:
        return self.monotonic_ms() * 1_000

    def boottime_ms(self) -> int:
        rate = self._oscillator.rate
        return self._clock.now_ms if rate == 1.0 else int(self._clock.now_ms * rate)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._clock.call_soon(lambda: self._run(callback))

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> SimTimer:
        """A timer keeps the rate that the clock has now, and comes later by as much as the host sleeps."""
        rate = self._oscillator.rate
        delay = max(delay_ms, 0) if rate == 1.0 else -int(-max(delay_ms, 0) // rate)
        slept_ms = self._oscillator.slept_ms
        timer = self._clock.call_later(delay, lambda: self._fire(timer, slept_ms, callback))
        return timer

    # What happens to the host

    def stop(self) -> None:
        self._stopped = True

    def pause(self) -> None:
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """What was due meanwhile happens now, late."""
        held, self._held = self._held or [], None
        for callback in held:
            self._clock.call_soon(callback)

    def _fire(self, timer: SimTimer, slept_ms: int, callback: Callable[[], None]) -> None:
        if self._held is not None:
            self._held.append(lambda: self._fire(timer, slept_ms, callback))
            return
        late_ms = self._oscillator.slept_ms - slept_ms
        if timer.cancelled:
            return
        if late_ms:
            now_slept_ms = self._oscillator.slept_ms
            timer.callback = lambda: self._fire(timer, now_slept_ms, callback)
            self._clock.put_off(timer, timer.moment + late_ms)
            return
        self._run(callback)

    def _run(self, callback: Callable[[], None]) -> None:
        if self._held is not None:
            self._held.append(lambda: self._run(callback))
        elif not self._stopped:
            callback()
