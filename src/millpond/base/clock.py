"""The clock port, as everything below `node` sees it; `ports.py` has the other ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and the loop that everything runs on."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump either way: use it for timestamps, never for durations."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never decreases."""
        ...

    def monotonic_us(self) -> int:
        """The same in microseconds, to measure durations."""
        ...

    def boottime_ms(self) -> int:
        """As `monotonic_ms`, but includes time in which the machine was suspended.

        Leases use this clock: other nodes do not wait for a suspended machine. Timers do not.
        """
        ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...
