"""Which fetches take the short path. `test_short_paths.py` compares its responses with those of the general path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

CONSUMERS = 2
Asked = m.FetchRequest


class FetchBroker:
    """A broker that counts which path each fetch of its consumers takes."""

    def __init__(self, make_server: Callable[..., Any]) -> None:
        self.server = make_server()
        self.taken = {"short": 0, "general": 0}
        self.server.create("plain", 2, segment_bytes="16384")
        self.consumers = [self.server.connect() for _ in range(CONSUMERS)]
        self.producer = self.server.connect()
        # Before the first request, the dispatcher does not know whether the node has joined its cluster.
        self.producer.ask(m.MetadataRequest(topics=[]), 12)
        entry = self.server.broker.dispatcher._entries[1]
        self._api = entry.api
        entry.api = replace(entry.api, short=self._short, handle=self._general)

    def _short(self, *args: Any) -> bool:
        is_taken = self._api.short(*args)
        self.taken["short"] += is_taken
        return is_taken

    def _general(self, *args: Any) -> Any:
        self.taken["general"] += 1
        return self._api.handle(*args)

    def fetch(self, who: int, version: int, topics: list[tuple[str, dict[str, int]]], **fields: Any) -> None:
        named = []
        for name, wanted in topics:
            topic = self.server.broker.image.topics.get(name)
            by = {"topic": name} if version < 13 else {} if topic is None else {"topic_id": topic.id}
            named.append(Asked.FetchTopic(**by, partitions=[Asked.FetchPartition(**wanted)]))
        self.consumers[who].send(Asked(topics=named, **fields), version)

    def produce(self, topic: str, index: int, records: bytes) -> None:
        data = m.ProduceRequest.PartitionProduceData(index=index, records=memoryview(records))
        part = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        self.producer.send(m.ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[part]), 9)

    def hang_up(self, who: int) -> None:
        self.consumers[who].link.end()
        self.consumers[who] = self.server.connect()

    def is_idle(self) -> bool:
        """Whether no fetch is pending, watches a partition, or holds a file."""
        partitions = list(self.server.broker.partitions)
        files = [segment.file for each in partitions for segment in each.log.segments]
        is_watched = any(each.watchers for each in partitions)
        return not (len(self.server.broker.pending_fetches) or is_watched or any(file.is_held() for file in files))


def batch(size: int, **fields: Any) -> bytes:
    return encode_batch([Record(0, WALL_START_MS, b"k", b"v" * size)], **fields)


def wanted(offset: int, bytes_max: int = 1 << 20) -> list[tuple[str, dict[str, int]]]:
    return [("plain", {"partition": 0, "fetch_offset": offset, "partition_max_bytes": bytes_max})]


WAITS: dict[str, Any] = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20}


@pytest.mark.parametrize("version", range(12, 19))
def test_idle_and_reading_consumers_take_the_short_path(make_server: Callable[..., Any], version: int) -> None:
    target = FetchBroker(make_server)
    target.fetch(0, version, wanted(0), session_epoch=0, **WAITS)
    target.server.run(200)
    (began,) = target.consumers[0].replies()
    assert target.taken == {"short": 0, "general": 1}
    session = {"session_id": began.session_id}
    target.fetch(0, version, [], session_epoch=1, **session, **WAITS)
    assert len(target.server.broker.pending_fetches) == 1
    target.server.run(200)
    (nothing,) = target.consumers[0].replies()
    assert (nothing.session_id, nothing.responses) == (began.session_id, [])
    target.fetch(0, version, [], session_epoch=2, **session, **WAITS)
    target.produce("plain", 0, batch(10))
    (reply,) = target.consumers[0].replies()
    assert len(reply.responses[0].partitions[0].records) == len(batch(10))
    target.fetch(0, version, wanted(1), session_epoch=3, **session, **WAITS)
    target.server.run(200)
    target.fetch(0, version, wanted(0), session_epoch=-1, **WAITS)
    assert len(target.consumers[0].replies()) == 2
    assert target.taken == {"short": 4, "general": 1}
    assert target.is_idle()


def test_cold_records_are_read_by_a_worker(make_server: Callable[..., Any]) -> None:
    target = FetchBroker(make_server)
    target.fetch(0, 12, wanted(0), session_epoch=-1, **WAITS)
    target.server.disk.cold_share = 1.0
    for size in (10, 9_000):
        target.produce("plain", 0, batch(size))
    target.server.run(50)
    target.fetch(0, 12, wanted(1), session_epoch=-1, **WAITS)
    target.server.run(50)
    partitions = [each.responses[0].partitions[0] for each in target.consumers[0].replies()]
    assert [(each.error_code, len(each.records)) for each in partitions] == [
        (0, len(batch(10))),
        (0, len(batch(9_000))),
    ]
    assert target.taken == {"short": 1, "general": 1}
    assert target.is_idle()


def test_deleting_the_topic_answers_a_pending_fetch(make_server: Callable[..., Any]) -> None:
    target = FetchBroker(make_server)
    for version in (12, 13):
        target.fetch(0, version, wanted(0), session_epoch=-1, **WAITS)
    assert target.taken == {"short": 2, "general": 0}
    target.server.delete("plain")
    target.server.run(10)
    codes = [each.responses[0].partitions[0].error_code for each in target.consumers[0].replies()]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
    assert len(target.server.broker.pending_fetches) == 0
    assert sum(target.server.broker.requests.times[1].counts) == 2


def test_a_pending_fetch_ends_with_its_connection(make_server: Callable[..., Any]) -> None:
    target = FetchBroker(make_server)
    target.fetch(0, 12, wanted(0), session_epoch=-1, **WAITS)
    assert not target.is_idle()
    target.hang_up(0)
    assert target.is_idle()
    target.produce("plain", 0, batch(10))
    target.server.run(200)


def test_nodes_and_clients_with_quotas_take_the_general_path(make_server: Callable[..., Any]) -> None:
    target = FetchBroker(make_server)
    target.consumers[1].client_id = "millpond-node-7"
    for who in (0, 1):
        target.fetch(who, 12, wanted(0), session_epoch=-1, max_wait_ms=0, min_bytes=1)
    assert target.taken == {"short": 1, "general": 1}
    kind = m.AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name="somebody")
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key="consumer_byte_rate", value=1e9)])
    target.producer.ask(kind(entries=[entry]), 1)
    target.fetch(0, 12, wanted(0), session_epoch=-1, max_wait_ms=0, min_bytes=1)
    assert target.taken == {"short": 1, "general": 2}
