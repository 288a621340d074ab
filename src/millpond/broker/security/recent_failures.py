"""Repeated failed logins from an address delay the response more and more. Successful logins are not delayed."""

from __future__ import annotations

from typing import Final

WINDOW_MS: Final = 60_000
FREE: Final = 10
"""The delay doubles after every this many failures from one address in the window. Programs with an outdated password
retry too."""

WAIT_MS_MAX: Final = 5_000
HOSTS_MAX: Final = 10_000


class RecentFailures:
    """Recent login failures by address, for the latest addresses only."""

    def __init__(self) -> None:
        self._by_host: dict[str, tuple[int, int]] = {}
        """Start of the window and number of failures, oldest window first."""

    def wait_ms(self, host: str, usual_ms: int, now_ms: int) -> int:
        """Count one more failure and return how long to delay its response."""
        since_ms, count = self._by_host.get(host, (now_ms, 0))
        if now_ms - since_ms > WINDOW_MS:
            since_ms, count = now_ms, 0
            del self._by_host[host]
        elif host not in self._by_host and len(self._by_host) >= HOSTS_MAX:
            del self._by_host[next(iter(self._by_host))]
        self._by_host[host] = since_ms, count + 1
        doublings = min(count // FREE, 10)
        return min(usual_ms << doublings, max(WAIT_MS_MAX, usual_ms))
