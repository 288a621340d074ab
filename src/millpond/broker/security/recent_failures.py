"""Whoever fails again and again waits longer for each answer. Who knows the password waits for nothing."""

from __future__ import annotations

from typing import Final

WINDOW_MS: Final = 60_000
FREE: Final = 10
"""So many failures from one address in that time are forgiven: programs with an old password try again, too."""

WAIT_MS_MAX: Final = 5_000
HOSTS_MAX: Final = 10_000


class RecentFailures:
    """How often logins have failed lately, by address. Knows the last addresses only."""

    def __init__(self) -> None:
        self._by_host: dict[str, tuple[int, int]] = {}
        """Since when, and how many; in the order in which they began."""

    def wait_ms(self, host: str, usual_ms: int, now_ms: int) -> int:
        """One more has failed: how long its answer waits."""
        since_ms, count = self._by_host.get(host, (now_ms, 0))
        if now_ms - since_ms > WINDOW_MS:
            since_ms, count = now_ms, 0
            del self._by_host[host]
        elif host not in self._by_host and len(self._by_host) >= HOSTS_MAX:
            del self._by_host[next(iter(self._by_host))]
        self._by_host[host] = since_ms, count + 1
        doublings = min(count // FREE, 10)
        return min(usual_ms << doublings, max(WAIT_MS_MAX, usual_ms))
