"""The machine's clocks, and the asyncio loop that everything runs on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Final, cast

BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Also counts while the machine is suspended. On macOS, which has no CLOCK_BOOTTIME, CLOCK_MONOTONIC does."""


class LoopClock:
    """The clock port over one asyncio loop (uvloop's or the standard one)."""

    __slots__ = ("_loop", "call_soon")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The loop's own method, without a wrapper: every reply goes through it.
        self.call_soon = cast("Callable[[Callable[[], None]], None]", loop.call_soon)

    def wall_ms(self) -> int:
        return time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return monotonic_ns() // 1_000

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(BOOT_CLOCK) // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, callback)
