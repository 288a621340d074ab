"""Admission of new connections: limits on their number and on their rate, per address, per listener and in total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Clock
from millpond.base.settings import Settings
from millpond.broker.security.bucket import Buckets
from millpond.broker.security.met_limits import MetLimits
from millpond.config.node import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IP
from millpond.config.quota import (
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTION_CREATION_RATE_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    burst_seconds,
    counts_by_address,
    plain_address,
)
from millpond.config.security import name_for, own_of_listener
from millpond.metadata.quotas import CONNECTION_CREATION_RATE, IP
from millpond.metadata.records import ClientQuotaRecord

ADDRESSES_MAX: Final = 20_000
"""Addresses with a separate rate bucket; further ones share a single bucket."""

LAST_TENTH: Final = 10
"""One address never takes the last tenth of all connections, so that others can still connect."""

EVERYBODY: Final = ""
BY_LISTENER: Final = "listener "
"""A key prefix that no address begins with."""


class Door(NamedTuple):
    """The listener that a new connection arrives on."""

    name: str
    open_count: int
    """Open connections of this listener."""
    is_protected: bool
    """Whether it is for nodes and clients have another one, so that client connections never keep a node out."""


class Arrivals:
    """Called once for each new connection."""

    def __init__(
        self,
        clock: Clock,
        settings: Callable[[], Settings],
        limits: MetLimits,
        on_refused: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """`on_refused` is called with the address of a refused connection and the limit that refused it."""
        self._on_refused = on_refused
        self._clock = clock
        self._settings = settings
        self.limits = limits
        self._rates: dict[str | None, float] = {}
        """Connection rate quotas by address; None is the default."""
        self._buckets: Buckets[str] = Buckets(ADDRESSES_MAX)

    def replay(self, record: ClientQuotaRecord) -> None:
        """Apply a quota that was set or removed."""
        part = record.entity[0]
        if part.entity_type != IP or record.key != CONNECTION_CREATION_RATE:
            return
        address = None if part.entity_name is None else plain_address(part.entity_name)
        if record.remove:
            self._rates.pop(address, None)
        else:
            self._rates[address] = record.value

    def admits(self, host: str, open_here: int, open_in_all: int, door: Door) -> bool:
        """Whether `host`, which has `open_here` of all open connections, may open one more.

        A protected listener admits connections beyond the total limit too; the caller drops another one for it.
        """
        settings = self._settings()
        most = settings[MAX_CONNECTIONS]
        if open_in_all >= most and not door.is_protected:
            return self._refuse(host, MAX_CONNECTIONS.name, most)
        by_door = own_of_listener(settings, door.name, MAX_CONNECTIONS)
        if by_door is not None and door.open_count >= by_door:
            return self._refuse(host, name_for(door.name, MAX_CONNECTIONS.name), by_door)
        overrides = settings[MAX_CONNECTIONS_PER_IP_OVERRIDES]
        own = counts_by_address(overrides).get(host) if overrides else None
        if own is not None and open_here >= own:
            return self._refuse(host, MAX_CONNECTIONS_PER_IP_OVERRIDES.name, own)
        if own is None and open_here >= (
            from_one := min(settings[MAX_CONNECTIONS_PER_IP], most - most // LAST_TENTH)
        ):
            return self._refuse(host, MAX_CONNECTIONS_PER_IP.name, from_one)
        return self._comes_in_time(host, settings, door)

    def _comes_in_time(self, host: str, settings: Settings, door: Door) -> bool:
        rate = self._rates.get(host, self._rates.get(None))
        by_quota = rate is not None
        per_host = rate if rate is not None else float(settings[MAX_CONNECTION_CREATION_RATE_PER_IP])
        if not self._takes(host, per_host, settings):
            limit = CONNECTION_CREATION_RATE if by_quota else MAX_CONNECTION_CREATION_RATE_PER_IP.name
            return self._refuse(host, limit, per_host)
        by_door = own_of_listener(settings, door.name, MAX_CONNECTION_CREATION_RATE)
        if by_door is not None and not self._takes(f"{BY_LISTENER}{door.name}", float(by_door), settings):
            return self._refuse(host, name_for(door.name, MAX_CONNECTION_CREATION_RATE.name), by_door)
        in_all = settings[MAX_CONNECTION_CREATION_RATE]
        if not door.is_protected and not self._takes(EVERYBODY, float(in_all), settings):
            return self._refuse(host, MAX_CONNECTION_CREATION_RATE.name, in_all)
        return True

    def _takes(self, key: str, rate: float, settings: Settings) -> bool:
        now_ms = self._clock.monotonic_ms()
        bucket = self._buckets.of(key, EVERYBODY, rate, burst_seconds(settings), now_ms)
        if bucket.left(now_ms) < 1:
            # A refused connection is not charged: a client that reconnects at once would never get in.
            return False
        bucket.take(1, now_ms)
        return True

    def _refuse(self, host: str, limit: str, most: float) -> bool:
        self.limits.note(limit, most, address=host)
        self._on_refused(host, limit)
        return False
