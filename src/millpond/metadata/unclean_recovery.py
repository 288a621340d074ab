"""Unclean recovery (KIP-966): which replica leads when an operator accepts that acknowledged records are lost.

The log with the highest last leader epoch wins; of those that share it, the longest one. A longer log with an older
last epoch lost an election at some point, and its tail was never committed. See decision 33.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from millpond.base.named_tuple import NamedTuple
from millpond.metadata.image import Image, Partition
from millpond.metadata.leadership import NO_LEADER, CanLead


class LogEnd(NamedTuple):
    """The end of one replica's log. Tuples compare as recovery does: the last epoch first, then the offset."""

    last_epoch: int
    end_offset: int


class ReplicaLogEnd(NamedTuple):
    """A log end as a broker reported it in one incarnation."""

    broker_epoch: int
    end: LogEnd


LogEnds: TypeAlias = Mapping[tuple[str, int], Mapping[int, ReplicaLogEnd]]
"""By topic and partition, then by broker: the log ends that live replicas reported."""


def partitions_in(image: Image) -> Iterator[tuple[str, int]]:
    return ((topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions)))


def leaderless(image: Image, partitions: Iterable[tuple[str, int]] | None) -> dict[int, list[tuple[str, int]]]:
    """The leaderless partitions of which each live broker has a replica; None selects all partitions."""
    by_broker: dict[int, list[tuple[str, int]]] = {}
    for topic_name, index in partitions_in(image) if partitions is None else dict.fromkeys(partitions):
        partition = image.partition(topic_name, index)
        if partition is not None and partition.leader == NO_LEADER:
            for broker_id in filter(image.is_active, partition.replicas):
                by_broker.setdefault(broker_id, []).append((topic_name, index))
    return by_broker


def longest_log(
    image: Image, partition: Partition, reported: Mapping[int, ReplicaLogEnd], can_lead: CanLead
) -> int | None:
    """The broker to elect; None if no replica that can lead has reported its log end.

    Between equal logs the order of the replicas decides, and replicas being added come last. A report from an earlier
    incarnation does not count: the log may have been lost since.
    """

    def is_current(broker_id: int) -> bool:
        broker, report = image.brokers.get(broker_id), reported.get(broker_id)
        return broker is not None and report is not None and broker.epoch == report.broker_epoch

    in_order = sorted(partition.replicas, key=partition.adding_replicas.__contains__)
    candidates = [each for each in in_order if can_lead(each) and is_current(each)]
    return max(candidates, key=lambda broker_id: reported[broker_id].end, default=None)
