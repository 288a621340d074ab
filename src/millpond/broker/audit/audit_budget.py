"""How much of the audit log somebody may fill with what did not come to anything.

Files of the log take turns: who fills them has the oldest removed, and with it what they tell of him and others. So
what anybody can cause at will (logins, failures, refusals) has a budget: one for each user, or for each address of
those who have not logged in, and one for all users together and one for all strangers. What is over it is counted
until there is something left.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final, NamedTuple

from millpond.base.principal import ANONYMOUS
from millpond.broker.security.bucket import Bucket, Buckets

FILL_SECONDS: Final = 4 * 24 * 3600
"""So long all users together, or all strangers, take to fill all files at the least."""
OF_ONE: Final = 16
"""One of them alone takes so many times as long."""
BURST_SECONDS: Final = 90 * 60
"""What was not used in this time can be used at once."""

ALONE_MAX: Final = 10_000
"""So many have a budget of their own at a time; the rest share one."""


class Source(NamedTuple):
    """Whose budget something is taken from."""

    name: str
    is_user: bool


def source_of(principal: str, host: str) -> Source:
    """Whoever has logged in, from wherever; else the address, of which a network of IPv6 has any number."""
    if principal and principal != str(ANONYMOUS):
        return Source(principal, True)
    return Source(_network(host) if ":" in host else host, False)


def _network(host: str) -> str:
    try:
        return IPv6Address(int(IPv6Address(host)) >> 64 << 64).compressed
    except ValueError:
        return host


class AuditBudget:
    def __init__(self, kept_bytes: int, now_ms: int) -> None:
        """`kept_bytes` is what all files have room for."""
        self._rate = kept_bytes / FILL_SECONDS
        self._together = {is_user: Bucket(self._rate, BURST_SECONDS, now_ms) for is_user in (True, False)}
        self._alone: Buckets[Source] = Buckets(ALONE_MAX)

    def left(self, source: Source, now_ms: int) -> float:
        """The bytes that may still be told of it; none if that is not above zero."""
        return min(self._of(source, now_ms).left(now_ms), self.left_together(source.is_user, now_ms))

    def left_together(self, is_user: bool, now_ms: int) -> float:
        return self._together[is_user].left(now_ms)

    def take(self, source: Source, size: int, now_ms: int) -> None:
        """A line is told; one that is longer than what is left is owed."""
        self._of(source, now_ms).take(size, now_ms)
        self._together[source.is_user].take(size, now_ms)

    def _of(self, source: Source, now_ms: int) -> Bucket:
        return self._alone.of(source, source.is_user, self._rate / OF_ONE, BURST_SECONDS, now_ms)
