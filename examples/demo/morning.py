"""A morning in a shop: events of orders, with the faults of real streams, determined by a seed."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

REGIONS: Final = ("north", "south", "east", "west")
LIFE: Final = ("placed", "paid", "shipped")
OPENS: Final = datetime(2026, 1, 31, 8, 0, tzinfo=UTC)
MINUTES: Final = 45
LATE_SECONDS_MAX: Final = 150
CLOSING: Final = timedelta(minutes=30)
"""How far the last event, the closing of the till, lies behind the others: it closes every window before it."""

DUPLICATE_SHARE: Final = 0.01
LATE_SHARE: Final = 0.03
POISON_SHARE: Final = 0.002
ERASED_SHARE: Final = 0.01
POISON: Final = (b"{broken", b'{"at": "yesterday"}', b"\xff\xfe\x00", b"[1, 2, 3]", b'{"total": "a lot"}')


@dataclass(slots=True)
class Event:
    key: str
    value: bytes | None
    """None erases the order."""


@dataclass(slots=True)
class Truth:
    """The expected contents of the tables, counted while the events are generated."""

    sent: int = 0
    readable: int = 0
    tombstones: int = 0
    poison: int = 0
    duplicates: int = 0
    late: int = 0
    revenue: dict[tuple[datetime, str], float] = field(default_factory=lambda: defaultdict(float))
    current: dict[str, str] = field(default_factory=dict)
    """The status of every order that was not erased."""


class Shop:
    """Generates the events of `count` orders, and counts them in `truth`."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self._count = count
        self._chance = random.Random(seed)
        self._events = 0
        self.truth = Truth()

    def events(self) -> Iterator[Event]:
        """The events in sending order: each step of an order comes some orders after the one before."""
        waiting: dict[int, list[Event]] = defaultdict(list)
        for number in range(self._count):
            placed_at = OPENS + timedelta(minutes=MINUTES) * (self._tide(number / self._count))
            for step, event in enumerate(self._life(number, placed_at)):
                waiting[number + step * self._chance.randint(1, 40)].append(event)
            yield from self._told(waiting.pop(number, []))
        for number in sorted(waiting):
            yield from self._told(waiting[number])

    def closing(self, partitions: int) -> Iterator[Event]:
        """A last event for each partition, which advances the watermark."""
        for partition in range(partitions):
            self._events += 1
            self.truth.sent += 1
            self.truth.readable += 1
            self.truth.current[f"till-{partition}"] = "closed"
            yield self._event(
                f"till-{partition}", "closed", OPENS + timedelta(minutes=MINUTES) + CLOSING, 0.0, "north"
            )

    def _tide(self, share: float) -> float:
        """Few orders early and late, many in between."""
        return share + 0.12 * (share * (share - 1) * (2 * share - 1)) * 4

    def _life(self, number: int, placed_at: datetime) -> Iterator[Event]:
        key = f"order-{number}"
        region = REGIONS[number % 7 % 4]
        total = round(self._chance.lognormvariate(3.2, 0.8), 2)
        steps = LIFE[: self._chance.choice((1, 2, 3, 3, 3))]
        for step, status in enumerate(steps):
            at = placed_at + timedelta(seconds=step * self._chance.uniform(5, 60))
            yield self._event(key, status, at, total, region)
        if self._chance.random() < ERASED_SHARE:
            yield Event(key, None)

    def _event(self, key: str, status: str, at: datetime, total: float, region: str) -> Event:
        self._events += 1
        told = {
            "event_id": f"event-{self._events}",
            "order_id": key,
            "customer": f"customer-{hash_of(key) % 500}",
            "region": region,
            "status": status,
            "total": total,
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        return Event(key, json.dumps(told).encode())

    def _told(self, events: list[Event]) -> Iterator[Event]:
        for event in events:
            if event.value is None:
                self.truth.sent += 1
                self.truth.tombstones += 1
                self.truth.current.pop(event.key, None)
                yield event
                continue
            yield from self._with_faults(event)

    def _with_faults(self, event: Event) -> Iterator[Event]:
        assert event.value is not None
        told = json.loads(event.value)
        chance = self._chance.random()
        if chance < LATE_SHARE:
            at = datetime.fromisoformat(told["at"]) - timedelta(seconds=self._chance.uniform(20, LATE_SECONDS_MAX))
            told["at"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            event.value = json.dumps(told).encode()
            self.truth.late += 1
        self._count_event(event.key, told)
        yield event
        if chance > 1 - DUPLICATE_SHARE:
            self.truth.duplicates += 1
            self.truth.sent += 1
            self.truth.readable += 1
            yield event
        if self._chance.random() < POISON_SHARE:
            self.truth.sent += 1
            self.truth.poison += 1
            yield Event(f"poison-{self.truth.poison}", self._chance.choice(POISON))

    def _count_event(self, key: str, told: dict[str, object]) -> None:
        self.truth.sent += 1
        self.truth.readable += 1
        self.truth.current[key] = str(told["status"])
        if told["status"] == "placed":
            minute = datetime.fromisoformat(str(told["at"])).replace(second=0, microsecond=0)
            self.truth.revenue[minute, str(told["region"])] += float(str(told["total"]))


def hash_of(text: str) -> int:
    """A hash that is the same in every process, unlike Python's."""
    return sum(text.encode()) * 31 + len(text)
