"""The clock of the outside world, as everything below `node` sees it; `ports.py` has the rest of that world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and the one loop that everything runs on."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump either way: use it for timestamps, never for durations."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never falls."""
        ...

    def monotonic_us(self) -> int:
        """The same in microseconds, to measure how long something took."""
        ...

    def boottime_ms(self) -> int:
        """As `monotonic_ms`, but time in which the machine was suspended counts, too.

        Leases go by this one: others do not wait for a machine that sleeps. Timers do not fire by it.
        """
        ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...
