"""The clock of one simulated host: it drifts, jumps, sleeps, and stops while the process is paused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.sim.world.clock import SimTimer, VirtualClock


@dataclass(slots=True)
class Oscillator:
    """The clock hardware of the machine, which survives its processes."""

    wall_offset_ms: int = 0
    """How far its wall clock is ahead of the world's."""
    rate: float = 1.0
    """The host's milliseconds per millisecond of the world."""
    slept_ms: int = 0
    """Total time suspended, which the monotonic clock does not count."""


class HostClock:
    """The clock port of one host between start and stop; its timers end with the host."""

    def __init__(self, clock: VirtualClock, oscillator: Oscillator) -> None:
        self._clock = clock
        self._oscillator = oscillator
        self._stopped = False
        self._held: list[Callable[[], None]] | None = None
        """Callbacks that came due while paused; None while running."""

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
        """A timer keeps the current clock rate, and is delayed by the time the host sleeps."""
        rate = self._oscillator.rate
        delay = max(delay_ms, 0) if rate == 1.0 else -int(-max(delay_ms, 0) // rate)
        slept_ms = self._oscillator.slept_ms
        timer = self._clock.call_later(delay, lambda: self._fire(timer, slept_ms, callback))
        return timer

    # Host events

    def stop(self) -> None:
        self._stopped = True

    def pause(self) -> None:
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """Run what came due during the pause, late."""
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
