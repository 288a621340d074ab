"""From the times of many records to a latency budget: hops with their percentiles.

Pure: times go in, numbers come out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median


@dataclass(frozen=True, slots=True)
class Times:
    """One record's way, in milliseconds."""

    linger: float
    """In the producer, until it was part of a request."""
    send: float
    """Until the request had left, and half a round trip of the network."""
    broker: float
    """What the broker took: append, and whatever acks=all waits for."""
    acknowledge: float
    """The other half of the round trip."""
    process: float
    """From the reader's first sight of it until it was done with it."""
    acknowledged: float
    """When the producer had its acknowledgement, and ..."""
    arrived: float
    """... when the reader had the record, both since the call of `produce`."""

    @property
    def answered(self) -> float:
        """When the broker sent the acknowledgement."""
        return self.linger + self.send + self.broker

    @property
    def end_to_end(self) -> float:
        return self.arrived + self.process


@dataclass(frozen=True, slots=True)
class Hop:
    """None: only known together with its neighbour."""

    name: str
    p50_ms: float
    p99_ms: float | None
    worst_ms: float | None
    begins_ms: float
    """When it begins, at the median."""
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
    """Readers have most records before the producer's acknowledgement leaves: their way begins at the append."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of them."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def make_budget(records: Sequence[Times], leader_only_ms: Sequence[float], safe_name: str | None) -> Budget:
    """`leader_only_ms` is what the broker took for twins of the records that only the leader had to append; it
    tells the append from the rest, whose hop is called `safe_name`. Without a name there is no such hop."""
    worst = max(records, key=lambda record: record.end_to_end)
    hops: list[Hop] = []

    def add(name: str, begins_ms: float, of: Callable[[Times], float]) -> float:
        """When it ends, at the median."""
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
