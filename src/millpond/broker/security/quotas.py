"""Client quotas: bytes produced and fetched, request time on the loop, partitions created and deleted.

The most specific quota applies: user and client id, user and default client id, user; then the same three for the
default user; then client id, default client id. All clients of a user share its user quota, and all users of a
client id share its client id quota.

Requests are served first and charged for what they use. A client over its quota gets the time to wait in its response
(throttle_time_ms), and its connection is not read from for that long (KIP-219). A fetch by a client that is already
throttled returns no records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from millpond.base.ports import Clock
from millpond.base.settings import Settings
from millpond.broker.security.bucket import Bucket, Buckets
from millpond.config.quota import QUOTA_WINDOW_SECONDS, burst_seconds, mutation_burst_seconds
from millpond.metadata.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from millpond.metadata.records import ClientQuotaRecord

if TYPE_CHECKING:
    from millpond.base.principal import Principal

PRODUCE: Final = 0
FETCHES: Final = (1, 78)
"""Fetch and ShareFetch."""

BUCKETS_MAX: Final = 20_000
"""Users and client ids with a separate bucket at a time."""

US_PER_PERCENT: Final = 10_000.0
"""Per second: 100 % is all the time of one loop."""

DEFAULT: Final = object()
"""The default entity, for users or client ids without a specific quota."""

Whose = tuple[object, object]
"""A user and a client id; each is a name, DEFAULT, or None when the quota does not name it."""


class Meter:
    """The buckets of one user and client id; None where there is no quota."""

    __slots__ = ("consumer", "mutations", "producer", "time")

    def __init__(
        self, producer: Bucket | None, consumer: Bucket | None, time: Bucket | None, mutations: Bucket | None
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.time = time
        self.mutations = mutations


class Metered(Protocol):
    """The part of a connection that quotas use."""

    principal: Principal | None
    metered: tuple[int, str | None, Principal | None, Meter | None] | None


class Charge:
    """One request of a client with a quota, until its response."""

    __slots__ = ("_began_us", "changes_partitions", "key", "meter")

    def __init__(self, meter: Meter, key: int, began_us: int, *, changes_partitions: bool) -> None:
        self.meter = meter
        self.key = key
        self.changes_partitions = changes_partitions
        self._began_us = began_us

    def take_time(self, now_us: int) -> None:
        """Charge the handler's time on the loop; waiting for the response afterwards is free."""
        if self.meter.time is not None and self._began_us >= 0:
            self.meter.time.take(now_us - self._began_us, now_us // 1000)
            self._began_us = -1

    def take_step(self, took_us: int, now_us: int) -> None:
        """Charge one slice of a request that is handled in slices."""
        self.take_time(now_us - took_us)
        if self.meter.time is not None:
            self.meter.time.take(took_us, now_us // 1000)


class Quotas:
    """Called by the dispatcher for each request if it `is_on`."""

    def __init__(self, clock: Clock, settings: Callable[[], Settings]) -> None:
        self.is_on = False
        self.throttled_total = 0
        self.throttled_ms_total = 0
        self._clock = clock
        self._settings = settings
        self._limits: dict[str, dict[Whose, float]] = {}
        self._version = 0
        """Incremented to invalidate the meters cached by connections."""
        self._buckets: Buckets[tuple[str, object, object]] = Buckets(BUCKETS_MAX, self._outdate)

    def replay(self, record: ClientQuotaRecord) -> None:
        """Apply a quota that was set or removed."""
        named = {
            part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in record.entity
        }
        if IP in named:
            return
        whose = named.get(USER), named.get(CLIENT_ID)
        limits = self._limits.setdefault(record.key, {})
        if record.remove:
            limits.pop(whose, None)
        else:
            limits[whose] = record.value
        if not limits:
            del self._limits[record.key]
        self.is_on = bool(self._limits)
        self._outdate()

    def _outdate(self) -> None:
        self._version += 1

    # Choosing the buckets.

    def meter_of(self, connection: Metered, client_id: str | None) -> Meter | None:
        """The client's meter, cached on its connection; None without a quota."""
        known = connection.metered
        if (
            known is not None
            and known[0] == self._version
            and known[1] == client_id
            and known[2] is connection.principal
        ):
            return known[3]
        principal = connection.principal
        meter = None if principal is None else self._meter(principal.name, client_id or "")
        connection.metered = (self._version, client_id, principal, meter)
        return meter

    def meter_for(self, principal: Principal, client_id: str | None) -> Meter | None:
        """The meter of a client that is connected to another node."""
        return self._meter(principal.name, client_id or "")

    def _meter(self, user: str, client_id: str) -> Meter | None:
        buckets = [
            self._bucket(key, user, client_id)
            for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
        ]
        return Meter(*buckets) if any(buckets) else None

    def _bucket(self, key: str, user: str, client_id: str) -> Bucket | None:
        limits = self._limits.get(key)
        found = limits and limit_for(limits, user, client_id)
        if not found:
            return None
        (of_user, of_client), rate = found
        settings = self._settings()
        seconds = mutation_burst_seconds(settings) if key == CONTROLLER_MUTATION_RATE else burst_seconds(settings)
        if key == REQUEST_PERCENTAGE:
            rate *= US_PER_PERCENT
        whose = (key, None if of_user is None else user, None if of_client is None else client_id)
        # When there are too many buckets, new ones are shared per user: client ids made up by one user cost no other.
        crowd = (key, whose[1])
        return self._buckets.of(whose, crowd, rate, seconds, self._clock.monotonic_ms())

    # Charging and throttling.

    def begin(self, meter: Meter, key: int, size: int, *, changes_partitions: bool) -> Charge:
        """Start a request of this size. Produced bytes are charged at once: the client may leave before the
        response."""
        now_us = self._clock.monotonic_us()
        if key == PRODUCE and meter.producer is not None:
            meter.producer.take(size, now_us // 1000)
        return Charge(meter, key, now_us, changes_partitions=changes_partitions)

    def wait_ms(self, charge: Charge) -> int:
        """The throttle time after the handler has returned."""
        meter, key = charge.meter, charge.key
        now_us = self._clock.monotonic_us()
        now_ms = now_us // 1000
        charge.take_time(now_us)
        wait_ms = 0
        if meter.time is not None:
            # Request time is throttled for at most one quota window, as in Kafka.
            wait_ms = min(meter.time.wait_ms(now_ms), self._settings()[QUOTA_WINDOW_SECONDS] * 1000)
        if key == PRODUCE and meter.producer is not None:
            wait_ms = max(wait_ms, meter.producer.wait_ms(now_ms))
        elif key in FETCHES and meter.consumer is not None:
            wait_ms = max(wait_ms, meter.consumer.wait_ms(now_ms))
        elif charge.changes_partitions and meter.mutations is not None:
            wait_ms = max(wait_ms, meter.mutations.wait_ms(now_ms))
        return wait_ms

    def settle(self, charge: Charge, response: Any) -> int:
        """The throttle time of a request that is about to be answered."""
        consumer = charge.meter.consumer
        if charge.key in FETCHES and consumer is not None:
            consumer.take(records_bytes(response), self._clock.monotonic_ms())
        wait_ms = self.wait_ms(charge)
        if charge.changes_partitions:
            # The controller charges partition mutations; its response has the throttle time.
            wait_ms = max(wait_ms, response.throttle_time_ms)
        if wait_ms:
            self.throttled_total += 1
            self.throttled_ms_total += wait_ms
        return wait_ms


def limit_for(limits: dict[Whose, float], user: str, client_id: str) -> tuple[Whose, float] | None:
    """The most specific quota that applies, and its entity."""
    for whose in (
        (user, client_id),
        (user, DEFAULT),
        (user, None),
        (DEFAULT, client_id),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, client_id),
        (None, DEFAULT),
    ):
        if whose in limits:
            return whose, limits[whose]
    return None


def records_bytes(response: Any) -> int:
    """The bytes of records in a fetch response."""
    return sum(
        len(part)
        for topic in getattr(response, "responses", ())
        for partition in topic.partitions
        for part in (partition.records if isinstance(partition.records, list) else (partition.records or b"",))
    )
