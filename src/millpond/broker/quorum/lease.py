"""Leases: how long a node may lead without contact, and how long a controller waits before it replaces the leader.

Both sides compute their times here from the same settings. A lease runs from the moment the node sent its heartbeat.
The controller counts from the moment it received that heartbeat or, if it has received none, from its own election.
It waits longer than a lease lasts, because clocks run at different rates and a heartbeat may have been answered on a
slightly older proof of leadership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.config.node import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from millpond.base.ports import Clock
    from millpond.base.settings import Settings

SLACK_MS_MIN: Final = 100
"""Minimum delay of a heartbeat response, beyond the interval, that a lease tolerates."""

DRIFT_MS_MAX: Final = 50
DRIFT_SHARE: Final = 4
"""Two clocks that diverge by more than DRIFT_MS_MAX plus this fraction of the elapsed time show lost time."""


def lease_ms(settings: Settings) -> int:
    """How long a lease lasts from the moment its heartbeat was sent."""
    interval_ms = settings[BROKER_HEARTBEAT_INTERVAL_MS]
    return min(settings[BROKER_SESSION_TIMEOUT_MS] // 2, interval_ms + max(interval_ms // 3, SLACK_MS_MIN))


def proof_age_ms_max(settings: Settings) -> int:
    """How old a controller's proof that a majority follows it may be when it answers a heartbeat."""
    return lease_ms(settings) // 8


def fence_wait_ms(settings: Settings) -> int:
    """Minimum time a controller waits before it fences a broker that has not asked for it.

    It exceeds a lease plus the age of a proof even if one clock runs 10 % fast and the other 10 % slow, and is always
    shorter than a session.
    """
    return lease_ms(settings) * 3 // 2


class LeaseClock:
    """The clock of leases, which also runs while the machine is suspended.

    A paused virtual machine may show the lost time only in its wall clock, once that is corrected. Whenever the wall
    clock and the boot-time clock diverge, this clock leaps by one lease, which voids every lease.
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
