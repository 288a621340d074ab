"""Turn the timings of many records into a latency budget: hops with their percentiles.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median


@dataclass(frozen=True, slots=True)
class Times:
    """Timings of one record, in milliseconds."""

    linger: float
    """Time in the producer until the record is in a request."""
    send: float
    """Time until the request is sent, plus half a network round trip."""
    broker: float
    """Time in the broker: the append, and with acks=all the wait for replication or sync."""
    acknowledge: float
    """The other half of the round trip."""
    process: float
    """Time from the consumer's receipt of the record until it is processed."""
    acknowledged: float
    """When the producer received the acknowledgement; like `arrived`, since the call of `produce`."""
    arrived: float
    """When the consumer received the record."""

    @property
    def answered(self) -> float:
        return self.linger + self.send + self.broker

    @property
    def end_to_end(self) -> float:
        return self.arrived + self.process


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop of the path; p99 and worst are None if only known together with the next hop."""

    name: str
    p50_ms: float
    p99_ms: float | None
    worst_ms: float | None
    begins_ms: float
    """Median start time."""
    is_joined_with_next: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    name: str
    p50_ms: float
    p99_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True)
class Budget:
    hops: Sequence[Hop]
    totals: Sequence[Total]
    is_read_early: bool
    """Most records reach the consumer before the acknowledgement leaves, so its path starts at the append."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def make_budget(records: Sequence[Times], leader_only_ms: Sequence[float], safe_name: str | None) -> Budget:
    """Build the budget. `leader_only_ms` are broker times of twin records with acks=1.

    They separate the append from the rest of the broker's time, a hop called `safe_name`; without a name there is no
    such hop.
    """
    worst = max(records, key=lambda record: record.end_to_end)
    hops: list[Hop] = []

    def add(name: str, begins_ms: float, of: Callable[[Times], float]) -> float:
        """Add a hop; returns its median end time."""
        values = [of(record) for record in records]
        hops.append(Hop(name, median(values), percentile(values, 0.99), of(worst), begins_ms))
        return begins_ms + hops[-1].p50_ms

    sent_ms = add("send", add("linger", 0.0, lambda record: record.linger), lambda record: record.send)
    answered_ms = add("append", sent_ms, lambda record: record.broker)
    append_ms = hops[-1].p50_ms
    if safe_name is not None:
        both = hops.pop()
        append_ms = min(median(leader_only_ms), both.p50_ms)
        hops.append(replace(both, p50_ms=append_ms, is_joined_with_next=True))
        hops.append(Hop(safe_name, both.p50_ms - append_ms, None, None, sent_ms + append_ms))
    add("acknowledge", answered_ms, lambda record: record.acknowledge)
    is_read_early = 2 * sum(record.arrived < record.answered for record in records) > len(records)

    def fetch(record: Times) -> float:
        visible_ms = record.linger + record.send + append_ms if is_read_early else record.answered
        return max(0.0, record.arrived - visible_ms)

    fetched_ms = add("fetch", sent_ms + append_ms if is_read_early else answered_ms, fetch)
    add("process", fetched_ms, lambda record: record.process)
    totals = [
        _total("acknowledged", [record.acknowledged for record in records], worst.acknowledged),
        _total("end to end", [record.end_to_end for record in records], worst.end_to_end),
    ]
    return Budget(hops, totals, is_read_early)


def _total(name: str, values: Sequence[float], worst: float) -> Total:
    return Total(name, median(values), percentile(values, 0.99), worst)
