"""What `millpond topic describe` finds out, and how it shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from millpond.cli.admin import TopicSetting, own_settings
from millpond.cli.connect import ANSWER_SECONDS, Cluster
from millpond.cli.errors import failed, unknown_topic
from millpond.cli.offsets import bounds_of
from millpond.cli.sizes import sizes_on
from millpond.cli.table import Cell, byte_size, print_table


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    partition: int
    leader: int
    replicas: list[int]
    in_sync: list[int]
    start: int | None
    end: int | None
    size_bytes: int | None
    """What its leader holds on disk; None where that is not known."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    name: str
    partitions: list[PartitionFacts]
    settings: list[TopicSetting]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "partitions": [asdict(partition) for partition in self.partitions],
            "settings": [setting._asdict() for setting in self.settings],
        }


def describe(cluster: Cluster, names: list[str]) -> list[TopicFacts]:
    from confluent_kafka import KafkaException

    admin = cluster.admin()
    try:
        metadata = admin.list_topics(timeout=ANSWER_SECONDS)
    except KafkaException as refusal:
        raise failed("The cluster does not say what topics it has", refusal.args[0]) from None
    for name in names:
        if name not in metadata.topics:
            raise unknown_topic(name, metadata.topics)
    # A partition without a leader has nobody to ask.
    led = [
        (name, index)
        for name in names
        for index, each in metadata.topics[name].partitions.items()
        if each.leader >= 0
    ]
    bounds = bounds_of(admin, led) if led else {}
    sizes = sizes_on(cluster, {broker.id: (str(broker.host), broker.port) for broker in metadata.brokers.values()})
    settings = own_settings(admin, names)
    told = []
    for name in names:
        partitions = []
        for index, each in sorted(metadata.topics[name].partitions.items()):
            bound = bounds.get((name, index))
            partitions.append(
                PartitionFacts(
                    index,
                    each.leader,
                    list(each.replicas),
                    list(each.isrs),
                    bound.start if bound else None,
                    bound.end if bound else None,
                    sizes.get((each.leader, (name, index))),
                )
            )
        told.append(TopicFacts(name, partitions, settings[name]))
    return told


def print_description(topic: TopicFacts) -> None:
    records = sum((each.end or 0) - (each.start or 0) for each in topic.partitions)
    sizes = [each.size_bytes for each in topic.partitions if each.size_bytes is not None]
    size = f", {byte_size(sum(sizes))}" if sizes else ""
    count = len(topic.partitions)
    # Offsets, not records: compaction and markers take some without leaving a record.
    click.secho(f"{topic.name}: {count} partition{'' if count == 1 else 's'}, {records:,} offsets{size}", bold=True)
    rows: list[list[Cell]] = [
        [
            each.partition,
            "none" if each.leader < 0 else each.leader,
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.in_sync)),
            "-" if each.start is None else each.start,
            "-" if each.end is None else each.end,
            "-" if each.size_bytes is None else byte_size(each.size_bytes),
        ]
        for each in topic.partitions
    ]
    print_table(("Partition", "Leader", "Replicas", "In sync", "Start", "End", "Size"), rows, words=0)
    if topic.settings:
        click.echo()
        print_table(
            ("Setting", "Value", "From"),
            [
                (each.name, each.value if each.value is not None else "(hidden)", each.source)
                for each in topic.settings
            ],
            words=3,
        )
