"""How long a node may count on leading what it leads, and how long a controller waits before others lead it.

Both sides compute their time here, from the same settings. A lease runs from the moment at which the node asked. A
controller counts from the moment at which it heard the node, or was elected itself if it has not heard it yet. It
waits longer than a lease lasts: clocks run at different rates, and a heartbeat may have been answered on a proof of
leadership that is a little older.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.config.node import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.base.settings import Settings

SLACK_MS_MIN: Final = 100
"""How much later than usual the answer to a heartbeat may come, at the least, before the lease lapses."""

DRIFT_MS_MAX: Final = 50
DRIFT_SHARE: Final = 4
"""Two clocks that part by more than this, and more than this share of the time that passed, tell of lost time."""


def lease_ms(settings: Settings) -> int:
    """How long a lease lasts, from the moment at which the heartbeat left."""
    interval_ms = settings[BROKER_HEARTBEAT_INTERVAL_MS]
    return min(settings[BROKER_SESSION_TIMEOUT_MS] // 2, interval_ms + max(interval_ms // 3, SLACK_MS_MIN))


def proof_age_ms_max(settings: Settings) -> int:
    """How old a controller's proof that a majority follows it may be when it answers a heartbeat."""
    return lease_ms(settings) // 8


def fence_wait_ms(settings: Settings) -> int:
    """How long a controller waits, at the least, before it fences a broker against its will.

    Longer than a lease and the age of a proof together, even where one clock runs a tenth too fast and the other a
    tenth too slow. Always shorter than a session.
    """
    return lease_ms(settings) * 3 // 2


class LeaseClock:
    """Time as leases count it: also while the machine is suspended.

    A virtual machine that is paused may count that time by its wall clock alone, once that is set right. Where the
    wall clock parts from the other one, every lease is void: time leaps by the length of one.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._leap_ms = lease_ms(settings)
        self._boottime_ms = clock.boottime_ms()
        self._wall_ms = clock.wall_ms()
        self._leapt_ms = 0

    def now_ms(self) -> int:
        boottime_ms, wall_ms = self._clock.boottime_ms(), self._clock.wall_ms()
        passed_ms = boottime_ms - self._boottime_ms
        if abs(wall_ms - self._wall_ms - passed_ms) > DRIFT_MS_MAX + passed_ms // DRIFT_SHARE:
            self._leapt_ms += self._leap_ms
        self._boottime_ms, self._wall_ms = boottime_ms, wall_ms
        return boottime_ms + self._leapt_ms
