"""Tables about the cluster, in the schema `millpond`: made when a query names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from millpond.admin.dead_letters.letters import find_letter_topics
from millpond.admin.groups import list_groups
from millpond.admin.lag import LagWatch
from millpond.admin.offsets import bounds_of
from millpond.admin.topics import led_partitions
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster

SCHEMA: Final = "millpond"
ROWS_PER_BATCH: Final = 1_000

_TIME: Final = pa.timestamp("ms", "UTC")
_KINDS: Final[Mapping[str, pa.Schema]] = {
    "topics": pa.schema(
        [("topic", pa.string()), ("partitions", pa.int32()), ("offsets", pa.int64()), ("is_internal", pa.bool_())]
    ),
    "partitions": pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("leader", pa.int32()),
            ("replicas", pa.list_(pa.int32())),
            ("in_sync", pa.list_(pa.int32())),
            ("start_offset", pa.int64()),
            ("end_offset", pa.int64()),
        ]
    ),
    "lag": pa.schema(
        [
            ("group", pa.string()),
            ("state", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("member", pa.string()),
            ("committed", pa.int64()),
            ("end_offset", pa.int64()),
            ("lag", pa.int64()),
            ("behind_ms", pa.int64()),
        ]
    ),
    "dead_letters": pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", _TIME),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("error_type", pa.string()),
            ("error_message", pa.string()),
            ("group", pa.string()),
            ("attempts", pa.int32()),
            ("origin_topic", pa.string()),
            ("origin_partition", pa.int32()),
            ("origin_offset", pa.int64()),
        ]
    ),
}


def system_table(cluster: Cluster, name: str) -> pa.RecordBatchReader | None:
    """Its rows; None if there is no such table."""
    schema = _KINDS.get(name)
    if schema is None:
        return None
    return pa.RecordBatchReader.from_batches(schema, _batches(_ROWS[name](cluster), schema))


def names() -> list[str]:
    return [f"{SCHEMA}.{each}" for each in _KINDS]


def _batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while some := list(islice(rows, ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(some, schema)


def _topics(cluster: Cluster) -> Iterator[dict[str, Any]]:
    infos = cluster.topics()
    bounds = bounds_of(cluster, led_partitions(infos.values()))
    for name, info in sorted(infos.items()):
        held = (bounds.get(TopicPartition(name, each)) for each in info.partitions)
        yield {
            "topic": name,
            "partitions": len(info.partitions),
            "offsets": sum(each.end - each.start for each in held if each is not None),
            "is_internal": info.is_internal,
        }


def _partitions(cluster: Cluster) -> Iterator[dict[str, Any]]:
    infos = cluster.topics()
    bounds = bounds_of(cluster, led_partitions(infos.values()))
    for name, info in sorted(infos.items()):
        for index, each in sorted(info.partitions.items()):
            held = bounds.get(TopicPartition(name, index))
            yield {
                "topic": name,
                "partition": index,
                "leader": each.leader if each.leader >= 0 else None,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
                "start_offset": held.start if held else None,
                "end_offset": held.end if held else None,
            }


def _lag(cluster: Cluster) -> Iterator[dict[str, Any]]:
    groups = [each.group for each in list_groups(cluster, with_share=True)]
    if not groups:
        return
    for lag in LagWatch(cluster, groups, sample_seconds=0).look():
        for each in lag.partitions:
            yield {
                "group": lag.group.id,
                "state": lag.group.state,
                "topic": each.topic,
                "partition": each.partition,
                "member": each.member,
                "committed": each.committed,
                "end_offset": each.end,
                "lag": each.lag,
                "behind_ms": each.behind_ms,
            }


def _dead_letters(cluster: Cluster) -> Iterator[dict[str, Any]]:
    topics, _ = find_letter_topics(cluster, lambda: False)
    for topic in topics:
        for letter in topic.letters(topic.bounds):
            message, facts = letter.message, letter.facts
            yield {
                "topic": message.topic,
                "partition": message.partition,
                "offset": message.offset,
                "timestamp": message.timestamp_ms if message.timestamp_ms >= 0 else None,
                "key": message.key,
                "value": message.value,
                "error_type": facts.error_type if facts else None,
                "error_message": facts.error_message if facts else None,
                "group": facts.group if facts else None,
                "attempts": facts.attempts if facts else None,
                "origin_topic": facts.origin.topic if facts else None,
                "origin_partition": facts.origin.partition if facts else None,
                "origin_offset": facts.origin.offset if facts else None,
            }


_ROWS: Final[Mapping[str, Callable[[Cluster], Iterator[dict[str, Any]]]]] = {
    "topics": _topics,
    "partitions": _partitions,
    "lag": _lag,
    "dead_letters": _dead_letters,
}
