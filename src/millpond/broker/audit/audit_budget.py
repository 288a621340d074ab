"""A budget, in bytes, for audit events that any client can trigger at will.

The files of the audit log rotate: a client that fills them has the oldest removed, with the evidence against itself
and others. So logins, failures and refusals have a budget: one per user, or per address for unauthenticated clients,
plus one for all users together and one for all unauthenticated clients. Events over budget are counted until some
budget is left.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final, NamedTuple

from millpond.base.principal import ANONYMOUS
from millpond.broker.security.bucket import Bucket, Buckets

FILL_SECONDS: Final = 4 * 24 * 3600
"""The least time in which all users together, or all unauthenticated clients, can fill all files."""
OF_ONE: Final = 16
"""A single source takes this many times as long."""
BURST_SECONDS: Final = 90 * 60
"""The unused budget of this time can be spent at once."""

ALONE_MAX: Final = 10_000
"""Sources with a separate budget at a time; the rest share one."""


class Source(NamedTuple):
    """The user or address whose budget an event is charged to."""

    name: str
    is_user: bool


def source_of(principal: str, host: str) -> Source:
    """The user, from any address; for unauthenticated clients the address, or its /64 network with IPv6."""
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
        """`kept_bytes` is the total size of all log files."""
        self._rate = kept_bytes / FILL_SECONDS
        self._together = {is_user: Bucket(self._rate, BURST_SECONDS, now_ms) for is_user in (True, False)}
        self._alone: Buckets[Source] = Buckets(ALONE_MAX)

    def left(self, source: Source, now_ms: int) -> float:
        """The bytes that may still be written for this source; zero or less means none."""
        return min(self._of(source, now_ms).left(now_ms), self.left_together(source.is_user, now_ms))

    def left_together(self, is_user: bool, now_ms: int) -> float:
        return self._together[is_user].left(now_ms)

    def take(self, source: Source, size: int, now_ms: int) -> None:
        """Charge one line; a line longer than what is left leaves a debt."""
        self._of(source, now_ms).take(size, now_ms)
        self._together[source.is_user].take(size, now_ms)

    def _of(self, source: Source, now_ms: int) -> Bucket:
        return self._alone.of(source, source.is_user, self._rate / OF_ONE, BURST_SECONDS, now_ms)
