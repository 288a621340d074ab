"""Requests that cost far more than others of their size: full batches, lying headers, thousands of unknown names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final

from millpond.wire import messages as m
from millpond.wire.batch import HEADER_BYTES, read_header
from millpond.wire.records import _varint, wrap_payload
from support.fuzz.pools import NOW_MS

WIDE: Final = "sea"
"""A compacted topic with this many partitions, which `Target.prepare` creates."""
WIDE_PARTITIONS: Final = 16

NAMES_MAX: Final = 9_990
FULL_RECORDS: Final = 100_000
REQUEST_BYTES_MAX: Final = 4 << 20
FAR_MS: Final = 1 << 40
LONG_STEM: Final = "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 10_000
NAMES_BYTES_MAX: Final = 15 << 20
ITEMS_MAX: Final = 29_900

Made = tuple[m.Message, int]
"""A request and its version."""


@cache
def _payload(records: int, key: bytes) -> bytes:
    parts = []
    for delta in range(records):
        body = b"\0\0" + _varint(delta) + key + b"\x01\0"
        parts.append(_varint(len(body)) + body)
    return b"".join(parts)


@cache
def _batch(records: int, key: bytes, ahead_ms: int, lie_ms: int, codec: int) -> bytes:
    base = NOW_MS + ahead_ms
    return wrap_payload(_payload(records, key), records, base, base + lie_ms, codec=codec)


@cache
def _bomb(codec: int, value_bytes: int) -> bytes:
    """One record that is small only while it is compressed."""
    body = b"\0\0\0\x02k" + _varint(value_bytes) + b"\0" * value_bytes + b"\0"
    return wrap_payload(_varint(len(body)) + body, 1, NOW_MS, NOW_MS, codec=codec)


class HeavyMaker:
    def __init__(self, draw: Random, keys: tuple[int, ...]) -> None:
        self._draw = draw
        makers: dict[int, Callable[[], Made]] = {
            0: self._produce,
            2: self._list_offsets,
            1: self._fetch,
            3: self._metadata,
            8: self._offset_commit,
            9: self._offset_fetch,
            10: self._find_coordinator,
            11: self._join_group,
            14: self._sync_group,
            15: self._describe_groups,
            32: self._describe_configs,
            42: self._delete_groups,
            65: self._describe_transactions,
            75: self._describe_topic_partitions,
        }
        self._makers = [makers[key] for key in keys if key in makers]

    @property
    def makes_any(self) -> bool:
        return bool(self._makers)

    def request(self) -> Made:
        return self._draw.choice(self._makers)()

    def _names(self) -> list[str]:
        count = self._draw.choice((90, 300, 1_000, 3_000, NAMES_MAX))
        stem = self._draw.choice(("unknown", "x" * 200, "__", "pond.", LONG_STEM))
        if stem is LONG_STEM:
            count = min(count, NAMES_BYTES_MAX // len(stem.encode()))
        return [f"{stem}{each}" for each in range(count)]

    def _partitions(self) -> int:
        """Partitions of one topic."""
        return self._draw.choice((1, 2, 90, 1_000, 20_000))

    # Records

    def _produce(self) -> Made:
        draw, kind = self._draw, m.ProduceRequest
        codec = draw.randrange(5)
        if draw.random() < 0.3 and codec:
            batch = _bomb(codec, draw.choice((1 << 20, 15 << 20)))
        else:
            batch = _batch(
                draw.choice((1_000, 20_000, FULL_RECORDS)),
                draw.choice((b"\x01", b"\x02k")),
                draw.choice((0, 0, FAR_MS)),
                draw.choice((0, 1_000)),
                codec,
            )
        assert read_header(batch).size == len(batch) >= HEADER_BYTES
        partitions = min(WIDE_PARTITIONS, max(REQUEST_BYTES_MAX // len(batch), 1))
        data = [kind.PartitionProduceData(index=index, records=batch) for index in range(partitions)]
        topic = kind.TopicProduceData(name=draw.choice((WIDE, WIDE, "pond")), partition_data=data)
        acks = draw.choice((-1, 1, 1, 0))
        return kind(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[topic]), draw.choice((7, 9, 12))

    def _list_offsets(self) -> Made:
        draw, kind = self._draw, m.ListOffsetsRequest
        if draw.random() < 0.5:
            partitions = [
                kind.ListOffsetsPartition(partition_index=index, timestamp=draw.choice((NOW_MS + 500, -3)))
                for index in range(WIDE_PARTITIONS)
            ]
            topics = [kind.ListOffsetsTopic(name=WIDE, partitions=partitions)]
        else:
            one = kind.ListOffsetsPartition(partition_index=0, timestamp=NOW_MS)
            topics = [kind.ListOffsetsTopic(name=name, partitions=[one]) for name in self._names()]
        return kind(replica_id=-1, topics=topics), 7

    # Names

    def _metadata(self) -> Made:
        kind = m.MetadataRequest
        topics = [kind.MetadataRequestTopic(name=name) for name in self._names()]
        asks = self._draw.random() < 0.5
        # Thousands of new topics would dominate the rest of this run.
        request = kind(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=asks)
        return request, self._draw.choice((8, 9, 12))

    def _describe_topic_partitions(self) -> Made:
        kind = m.DescribeTopicPartitionsRequest
        topics = [kind.TopicRequest(name=name) for name in self._names()]
        return kind(topics=topics, response_partition_limit=2000), 0

    def _describe_groups(self) -> Made:
        return m.DescribeGroupsRequest(groups=self._names(), include_authorized_operations=True), 5

    def _delete_groups(self) -> Made:
        return m.DeleteGroupsRequest(groups_names=self._names()), 2

    def _describe_transactions(self) -> Made:
        return m.DescribeTransactionsRequest(transactional_ids=self._names()), 0

    def _find_coordinator(self) -> Made:
        return m.FindCoordinatorRequest(key_type=self._draw.randrange(2), coordinator_keys=self._names()), 4

    def _describe_configs(self) -> Made:
        kind = m.DescribeConfigsRequest
        resources = [
            kind.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in self._names()
        ]
        return kind(resources=resources, include_synonyms=True), 4

    def _topics(self) -> tuple[list[str], int]:
        """Topic names, and how many partitions each has: together no more than a request may name."""
        names = [WIDE] if self._draw.random() < 0.3 else self._names()
        return names, min(self._partitions(), (ITEMS_MAX - len(names)) // len(names))

    def _fetch(self) -> Made:
        draw, kind = self._draw, m.FetchRequest
        names, count = self._topics()
        partitions = [
            kind.FetchPartition(partition=index, fetch_offset=draw.choice((0, 5)), partition_max_bytes=1 << 20)
            for index in range(count)
        ]
        request = kind(
            replica_id=draw.choice((-1, -1, 1, 2)),
            max_wait_ms=draw.choice((0, 100)),
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=draw.choice((-1, 0)),
            topics=[kind.FetchTopic(topic=name, partitions=partitions) for name in names],
        )
        return request, draw.choice((8, 11, 12))

    def _offset_commit(self) -> Made:
        draw, kind = self._draw, m.OffsetCommitRequest
        names, count = self._topics()
        committed = [
            kind.OffsetCommitRequestPartition(partition_index=index % WIDE_PARTITIONS, committed_offset=index)
            for index in range(count)
        ]
        topics = [kind.OffsetCommitRequestTopic(name=name, partitions=committed) for name in names]
        return kind(group_id="crew", generation_id_or_member_epoch=-1, topics=topics), draw.choice((6, 8))

    def _join_group(self) -> Made:
        draw, kind = self._draw, m.JoinGroupRequest
        metadata = bytes(draw.choice((1, 300)))
        request = kind(
            group_id=draw.choice(("crew", "guild", "heavy")),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=1_000,
            protocol_type="consumer",
            protocols=[kind.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self._names()[:2_900]],
        )
        return request, draw.choice((2, 5, 9))

    def _sync_group(self) -> Made:
        draw, kind = self._draw, m.SyncGroupRequest
        assignment = bytes(draw.choice((1, 300)))
        members = [
            kind.SyncGroupRequestAssignment(member_id=name, assignment=assignment)
            for name in self._names() * draw.choice((1, 2))
        ]
        request = kind(group_id=draw.choice(("crew", "heavy")), generation_id=1, member_id="m", assignments=members)
        return request, draw.choice((3, 4))

    def _offset_fetch(self) -> Made:
        kind = m.OffsetFetchRequest
        if self._draw.random() < 0.5:
            names, count = self._topics()
            indexes = list(range(count))
            topics = [kind.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name in names]
            group = kind.OffsetFetchRequestGroup(group_id="crew", topics=self._draw.choice((topics, topics, None)))
            return kind(groups=[group]), 8
        groups = [kind.OffsetFetchRequestGroup(group_id=name, topics=None) for name in self._names()]
        return kind(groups=groups), 8
