"""How much a client may take: bytes written and read, time of the loop, partitions made and deleted.

Of the quotas that the metadata have, the closest counts: that of the user with this client id, of the user with any,
of the user; then the same of all users; then of the client id, of any. Who has it: with a quota of a user all of his
clients share one measure, with one of a client id all users of it do.

A request is served as always, and what it takes is counted. Where that is more than there is, the answer says how
long to wait (throttle_time_ms), and nothing more is read from the connection for as long (KIP-219). A fetch by
somebody who is to wait already is answered with no records.
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
FETCH: Final = 1

BUCKETS_MAX: Final = 20_000
"""So many users and client ids are measured at once."""

US_PER_PERCENT: Final = 10_000.0
"""Of a second: 100 % are all that one loop has."""

DEFAULT: Final = object()
"""Stands for the entity of all that have none of their own."""

Whose = tuple[object, object]
"""A user and a client id, each a name, DEFAULT or None for "whichever"."""


class Meter:
    """What one user and client id take from, each None where there is no quota."""

    __slots__ = ("consumer", "mutations", "producer", "time")

    def __init__(
        self, producer: Bucket | None, consumer: Bucket | None, time: Bucket | None, mutations: Bucket | None
    ) -> None:
        self.producer = producer
        self.consumer = consumer
        self.time = time
        self.mutations = mutations


class Metered(Protocol):
    """A connection, as far as quotas know it."""

    principal: Principal | None
    metered: tuple[int, str | None, Principal | None, Meter | None] | None


class Charge:
    """One request whose client has a quota, until it is answered."""

    __slots__ = ("_began_us", "changes_partitions", "key", "meter")

    def __init__(self, meter: Meter, key: int, began_us: int, *, changes_partitions: bool) -> None:
        self.meter = meter
        self.key = key
        self.changes_partitions = changes_partitions
        self._began_us = began_us

    def take_time(self, now_us: int) -> None:
        """Its handler has ended: that was the loop's time. How long the answer takes from now on is not."""
        if self.meter.time is not None and self._began_us >= 0:
            self.meter.time.take(now_us - self._began_us, now_us // 1000)
            self._began_us = -1

    def take_step(self, took_us: int, now_us: int) -> None:
        """It is handled in steps: so long this one took of the loop."""
        self.take_time(now_us - took_us)
        if self.meter.time is not None:
            self.meter.time.take(took_us, now_us // 1000)


class Quotas:
    """Asked by the dispatcher for each request if it `is_on`."""

    def __init__(self, clock: Clock, settings: Callable[[], Settings]) -> None:
        self.is_on = False
        self.throttled_total = 0
        self.throttled_ms_total = 0
        self._clock = clock
        self._settings = settings
        self._limits: dict[str, dict[Whose, float]] = {}
        self._version = 0
        """Grows when what connections remember is outdated."""
        self._buckets: Buckets[tuple[str, object, object]] = Buckets(BUCKETS_MAX, self._outdate)

    def replay(self, record: ClientQuotaRecord) -> None:
        """The metadata have it now, or have it no more."""
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

    # Who takes from what.

    def meter_of(self, connection: Metered, client_id: str | None) -> Meter | None:
        """Where the one who asks has a quota."""
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
        """The same of somebody who has asked another node."""
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
        # Where too many are measured, those of one user share: nobody else pays for the names that he makes up.
        crowd = (key, whose[1])
        return self._buckets.of(whose, crowd, rate, seconds, self._clock.monotonic_ms())

    # What is taken.

    def begin(self, meter: Meter, key: int, size: int, *, changes_partitions: bool) -> Charge:
        """A request of this size begins. What it writes counts at once: its client may go before it is answered."""
        now_us = self._clock.monotonic_us()
        if key == PRODUCE and meter.producer is not None:
            meter.producer.take(size, now_us // 1000)
        return Charge(meter, key, now_us, changes_partitions=changes_partitions)

    def wait_ms(self, charge: Charge) -> int:
        """The handler has ended: how long its client has to wait."""
        meter, key = charge.meter, charge.key
        now_us = self._clock.monotonic_us()
        now_ms = now_us // 1000
        charge.take_time(now_us)
        wait_ms = 0
        if meter.time is not None:
            # Whoever holds up the loop pays soon, and for what he did of late: as Kafka does.
            wait_ms = min(meter.time.wait_ms(now_ms), self._settings()[QUOTA_WINDOW_SECONDS] * 1000)
        if key == PRODUCE and meter.producer is not None:
            wait_ms = max(wait_ms, meter.producer.wait_ms(now_ms))
        elif key == FETCH and meter.consumer is not None:
            wait_ms = max(wait_ms, meter.consumer.wait_ms(now_ms))
        elif charge.changes_partitions and meter.mutations is not None:
            wait_ms = max(wait_ms, meter.mutations.wait_ms(now_ms))
        return wait_ms

    def settle(self, charge: Charge, response: Any) -> int:
        """The request is about to be answered: how long its client has to wait."""
        consumer = charge.meter.consumer
        if charge.key == FETCH and consumer is not None:
            consumer.take(records_bytes(response), self._clock.monotonic_ms())
        wait_ms = self.wait_ms(charge)
        if charge.changes_partitions:
            # The controller has counted them.
            wait_ms = max(wait_ms, response.throttle_time_ms)
        if wait_ms:
            self.throttled_total += 1
            self.throttled_ms_total += wait_ms
        return wait_ms


def limit_for(limits: dict[Whose, float], user: str, client_id: str) -> tuple[Whose, float] | None:
    """The closest quota of several, and whose it is."""
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
    """How much of a response to a fetch is records."""
    return sum(
        len(part)
        for topic in getattr(response, "responses", ())
        for partition in topic.partitions
        for part in (partition.records if isinstance(partition.records, list) else (partition.records or b"",))
    )
