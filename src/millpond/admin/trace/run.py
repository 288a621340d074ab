"""Measure a latency budget on a cluster: set up the topic, run the measurement, add notes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millpond.admin.errors import Refused
from millpond.admin.groups import delete_groups
from millpond.admin.library import ClientLibrary
from millpond.admin.topics import delete_topics, find_topic
from millpond.admin.trace.hops import Budget, make_budget
from millpond.admin.trace.measurement import Leader, Traced, TraceOrder, measure
from millpond.base.words import counted
from millpond.remote.cluster import Cluster
from millpond.remote.topics import create_topic

CLOCK_MS_MAX: Final = 3.0
"""Timestamps have millisecond precision: a smaller difference says nothing about the clock."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The measured budget."""

    order: TraceOrder
    topic: str
    replicas: int
    network_ms: float
    clock_ms: float | None
    budget: Budget
    notes: tuple[str, ...]
    """Caveats for reading the numbers."""


def run_trace(
    cluster: Cluster, library: ClientLibrary, order: TraceOrder, tell: Callable[[int], None] = lambda _: None
) -> Trace:
    with _topic(cluster, order.topic) as name:
        leader, replicas = _leader(cluster, name, order.partition)
        traced = measure(library, leader, order, tell)
        if order.does_commit:
            # The group's offsets are of no further use.
            delete_groups(cluster, [traced.group])
    # A single replica waits only for its disk.
    safe_name = None if order.acks == "1" else "replicate" if replicas > 1 else "sync"
    budget = make_budget(traced.records, traced.leader_only_ms, safe_name)
    notes = tuple(_notes(traced, budget, safe_name, order.does_commit))
    return Trace(order, name, replicas, traced.network_ms, traced.clock_ms, budget, notes)


@contextmanager
def _topic(cluster: Cluster, name: str | None) -> Iterator[str]:
    """The named topic; or a temporary one with LogAppendTime, deleted at the end."""
    if name is not None:
        yield name
        return
    own = f"millpond-trace-{os.urandom(4).hex()}"
    create_topic(cluster, own, 1, settings={"message.timestamp.type": "LogAppendTime"})
    try:
        yield own
    finally:
        delete_topics(cluster, [own])


def _leader(cluster: Cluster, topic: str, partition: int) -> tuple[Leader, int]:
    """The partition's leader and its replica count."""
    partitions = find_topic(cluster, topic).partitions
    if partition not in partitions:
        raise Refused(
            f"Topic {topic} has {counted(len(partitions), 'partition')}, from 0 on: "
            f"there is no partition {partition}."
        )
    info = partitions[partition]
    address = cluster.addresses().get(info.leader)
    if address is None:
        raise Refused(f"Partition {partition} of {topic} has no leader now: try again when it has one.")
    return Leader(topic, partition, info.leader, address), len(info.replicas)


def _notes(traced: Traced, budget: Budget, safe_name: str | None, does_commit: bool) -> Iterator[str]:
    yield (
        f"send and acknowledge each include half a TCP handshake ({traced.network_ms:.2f} ms); the rest of the round "
        "trip is the broker's."
    )
    if safe_name is not None:
        yield (
            f"append and {safe_name} cannot be told apart from outside the broker: p99 and worst cover both. The "
            "median of append comes from an equal number of records with acks=1."
        )
    if safe_name == "sync":
        yield "With one replica, acks=all waits only for the disk."
    if not does_commit:
        yield "process covers only the hand-over to the reader; --commit adds the commit of its offset."
    if budget.is_read_early and safe_name is not None:
        yield f"Readers got the records before {safe_name} was complete: their fetch begins after append."
    if traced.clock_ms is not None and abs(traced.clock_ms) > CLOCK_MS_MAX:
        ahead = "ahead of" if traced.clock_ms > 0 else "behind"
        yield f"The broker's clock is about {abs(traced.clock_ms):.0f} ms {ahead} the one here."
