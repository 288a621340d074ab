"""The short and the general path of Fetch give the same responses, both at once and after a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.support.permissions import permitted
from tests.support.seeds import seeds

from millpond.base.errors import ErrorCode
from millpond.metadata.topics import NewTopic, decide_create_topics
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

STEPS = 400
CONSUMERS = 4
TOPICS = ("plain", "other")
Asked = m.FetchRequest


class Stage:
    """A broker whose consumers' requests may or may not take the short path."""

    def __init__(self, make_desk: Callable[..., Any], *, is_short: bool, texts: dict[str, str] | None = None) -> None:
        self.desk = make_desk(texts)
        self.taken = {"short": 0, "general": 0}
        for name in TOPICS:
            self.desk.create(name, 2, segment_bytes="16384")
        self.consumers = [self.desk.connect() for _ in range(CONSUMERS)]
        self.producer = self.desk.connect()
        self._sequences: dict[int, int] = {}
        """The transactional producer's next sequence by partition."""
        self.heard: list[list[bytes]] = [[] for _ in range(CONSUMERS)]
        # Before the first request, the dispatcher does not know whether the node has joined its cluster.
        self.producer.ask(m.MetadataRequest(topics=[]), 12)
        entry = self.desk.broker.dispatcher._entries[1]
        short = self._short if is_short else None
        self._api = entry.api
        entry.api = replace(entry.api, short=short, handle=self._general)

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
            found = self.desk.broker.image.topics.get(name)
            by = {"topic": name} if version < 13 else {} if found is None else {"topic_id": found.id}
            named.append(Asked.FetchTopic(**by, partitions=[Asked.FetchPartition(**wanted)]))
        self.consumers[who].send(Asked(topics=named, **fields), version)

    def produce(self, topic: str, index: int, records: bytes) -> None:
        data = m.ProduceRequest.PartitionProduceData(index=index, records=memoryview(records))
        part = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        self.producer.send(m.ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[part]), 9)

    def produce_in_transaction(self, index: int, size: int) -> None:
        partition = self.desk.broker.partitions.get("plain", index)
        sequence = self._sequences.get(index, 0)
        self._sequences[index] = sequence + 1
        permit = permitted(partition.log.producers, 7, 0, sequence, self.desk.broker.clock.wall_ms())
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        partition.append(memoryview(bytearray(batch(size, **fields))), zstd=True, verification=permit)

    def end_transaction(self, index: int, is_committed: bool) -> None:
        if self._sequences.get(index):
            self.desk.broker.partitions.get("plain", index).append_marker(7, 0, is_committed, 0, 0)

    def delete_records(self, topic: str, offset: int) -> None:
        kind = m.DeleteRecordsRequest
        part = kind.DeleteRecordsPartition(partition_index=0, offset=offset)
        self.producer.send(kind(topics=[kind.DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=1_000), 2)

    def create_again(self, name: str) -> None:
        broker, wanted = self.desk.broker, NewTopic(name, 2)
        self.desk.submit(
            lambda image: decide_create_topics(image, broker.layers, [wanted], broker.entropy, by_broker=True)
        )

    def hang_up(self, who: int) -> None:
        self.hear()
        self.consumers[who].link.end()
        self.consumers[who] = self.desk.connect()

    def hear(self) -> list[list[bytes]]:
        for each, heard in zip(self.consumers, self.heard, strict=True):
            heard += each.link.frames()
        return self.heard

    def traces(self) -> dict[str, Any]:
        broker = self.desk.broker
        sessions = broker.fetch_sessions._sessions
        return {
            "read": {str(each.name): each.read_bytes for each in broker.partitions},
            "watchers": {str(each.name): len(each.watchers) for each in broker.partitions},
            "held": [
                str(each.name) for each in broker.partitions if any(s.file.is_held() for s in each.log.segments)
            ],
            "pending": len(broker.pending_fetches),
            "sessions": [
                (each.id, each.epoch, each.last_used_ms, list(each.partitions.values())) for each in sessions.values()
            ],
            "requests": (
                broker.requests.received[1],
                sum(broker.requests.times[1].counts),
                broker.requests.times[1].sum_us,
                broker.requests.errors,
            ),
        }


def batch(size: int, **fields: Any) -> bytes:
    return encode_batch([Record(0, WALL_START_MS, b"k", b"v" * size)], **fields)


class Author:
    """Generates the same events for every stage. It reads session state from the first stage."""

    def __init__(self, random: Random, stage: Stage) -> None:
        self._random = random
        self._stage = stage

    def fetch(self) -> tuple[int, int, list[tuple[str, dict[str, int]]], dict[str, Any]]:
        random = self._random
        who = random.randrange(CONSUMERS)
        version = random.choices((12, 13, 17, 18, 11), (8, 4, 4, 4, 1))[0]
        topics = [(random.choice(TOPICS), self._wanted()) for _ in range(random.choices((1, 0, 2), (20, 2, 1))[0])]
        fields: dict[str, Any] = {
            "max_wait_ms": random.choice((0, 10, 50)),
            "min_bytes": random.choices((1, 0, 200), (12, 1, 1))[0],
            "max_bytes": random.choices((1 << 20, 150, 0, -1), (12, 2, 1, 1))[0],
            "isolation_level": random.choices((0, 1), (2, 1))[0],
            "rack_id": random.choices(("", "r"), (20, 1))[0] if version >= 11 else "",
        }
        sessions = self._stage.desk.broker.fetch_sessions._sessions
        match random.choices(("none", "new", "known", "wrong"), (8, 3, 14, 1))[0]:
            case "none":
                fields |= {"session_id": 0, "session_epoch": -1}
            case "new":
                fields |= {"session_id": 0, "session_epoch": 0}
            case "known" if sessions:
                session = random.choice(list(sessions.values()))
                fields |= {"session_id": session.id, "session_epoch": session.epoch}
                version = 13 if session.uses_topic_ids else 12
                topics = random.choices((topics, [], self._again(session)), (1, 9, 9))[0]
            case _:
                some = random.choice([0, *sessions])
                fields |= {"session_id": some, "session_epoch": random.choice((-1, 0, 1, 5))}
        return who, version, topics, fields

    def _again(self, session: Any) -> list[tuple[str, dict[str, int]]]:
        """The session's first partition, from another offset."""
        for name, topic_id, index in session.partitions:
            topic = self._stage.desk.broker.image.topics_by_id.get(topic_id)
            return [(topic.name if topic is not None else name or "plain", self._wanted(index))]
        return []

    def _wanted(self, index: int | None = None) -> dict[str, int]:
        random = self._random
        index = random.choices((0, 1, 2), (8, 4, 1))[0] if index is None else index
        partition = self._stage.desk.broker.partitions.get("plain", index)
        end = 0 if partition is None else partition.log.end_offset
        return {
            "partition": index,
            "current_leader_epoch": random.choices((-1, 0, 7), (9, 9, 1))[0],
            "fetch_offset": max(end - random.choices((0, 1, 2, 30, -3), (16, 8, 4, 1, 1))[0], -1),
            "partition_max_bytes": random.choices((1 << 20, 100, 1), (8, 2, 2))[0],
        }

    def size(self) -> int:
        return self._random.choices((10, 100, 3_000, 9_000), (8, 8, 1, 1))[0]


@pytest.mark.parametrize("seed", seeds(range(16)))
def test_both_ways_answer_the_same(make_desk: Callable[..., Any], seed: int) -> None:
    stages = [Stage(make_desk, is_short=is_short) for is_short in (True, False)]
    author, random = Author(Random(seed), stages[0]), Random(seed)
    weights = {
        "fetch": 60,
        "produce": 20,
        "run": 20,
        "transaction": 2,
        "end": 2,
        "hang up": 2,
        "delete records": 1,
        "delete": 1,
    }
    for _ in range(STEPS):
        topic, index = random.choice(TOPICS), random.randrange(2)
        match random.choices([*weights], [*weights.values()])[0]:
            case "fetch":
                who, version, topics, fields = author.fetch()
                for stage in stages:
                    stage.fetch(who, version, topics, **fields)
            case "produce":
                records = batch(author.size())
                for stage in stages:
                    stage.produce(topic, index, records)
            case "transaction":
                size = author.size()
                for stage in stages:
                    stage.produce_in_transaction(index, size)
            case "end":
                is_committed = random.random() < 0.5
                for stage in stages:
                    stage.end_transaction(index, is_committed)
            case "run":
                lasts_ms = random.choice((0, 1, 9, 10, 60))
                for stage in stages:
                    stage.desk.run(lasts_ms)
            case "hang up":
                who = random.randrange(CONSUMERS)
                for stage in stages:
                    stage.hang_up(who)
            case "delete records":
                partition = stages[0].desk.broker.partitions.get(topic, 0)
                offset = random.randint(0, partition.log.end_offset)
                for stage in stages:
                    stage.delete_records(topic, offset)
            case "delete":
                for stage in stages:
                    stage.desk.delete("other")
                    stage.create_again("other")
        short, general = stages
        assert short.hear() == general.hear()
    for stage in stages:
        stage.desk.run(1_000)
    assert short.hear() == general.hear()
    ours, theirs = short.traces(), general.traces()
    for name in theirs:
        assert ours[name] == theirs[name], name
    assert (ours["pending"], ours["held"]) == (0, [])
    assert short.taken["short"] > STEPS // 20
    assert general.taken["short"] == 0


def wanted(offset: int, bytes_max: int = 1 << 20) -> list[tuple[str, dict[str, int]]]:
    return [("plain", {"partition": 0, "fetch_offset": offset, "partition_max_bytes": bytes_max})]


WAITS: dict[str, Any] = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20}


@pytest.mark.parametrize("version", range(12, 19))
def test_the_short_way_is_taken_by_an_idle_consumer_and_by_one_that_reads_on(
    make_desk: Callable[..., Any], version: int
) -> None:
    stage = Stage(make_desk, is_short=True)
    stage.fetch(0, version, wanted(0), session_epoch=0, **WAITS)
    stage.desk.run(200)
    (began,) = stage.consumers[0].replies()
    assert stage.taken == {"short": 0, "general": 1}
    session = {"session_id": began.session_id}
    stage.fetch(0, version, [], session_epoch=1, **session, **WAITS)
    assert len(stage.desk.broker.pending_fetches) == 1
    stage.desk.run(200)
    (nothing,) = stage.consumers[0].replies()
    assert (nothing.session_id, nothing.responses) == (began.session_id, [])
    stage.fetch(0, version, [], session_epoch=2, **session, **WAITS)
    stage.produce("plain", 0, batch(10))
    (found,) = stage.consumers[0].replies()
    assert len(found.responses[0].partitions[0].records) == len(batch(10))
    stage.fetch(0, version, wanted(1), session_epoch=3, **session, **WAITS)
    stage.desk.run(200)
    stage.fetch(0, version, wanted(0), session_epoch=-1, **WAITS)
    assert len(stage.consumers[0].replies()) == 2
    assert stage.taken == {"short": 4, "general": 1}
    assert not any(stage.traces()["watchers"].values())


def test_what_is_not_in_memory_is_read_by_a_worker(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, is_short=True)
    stage.fetch(0, 12, wanted(0), session_epoch=-1, **WAITS)
    stage.desk.disk.cold_share = 1.0
    for size in (10, 9_000):
        stage.produce("plain", 0, batch(size))
    stage.desk.run(50)
    stage.fetch(0, 12, wanted(1), session_epoch=-1, **WAITS)
    stage.desk.run(50)
    found = [each.responses[0].partitions[0] for each in stage.consumers[0].replies()]
    assert [(each.error_code, len(each.records)) for each in found] == [(0, len(batch(10))), (0, len(batch(9_000)))]
    assert stage.taken == {"short": 1, "general": 1}
    assert (stage.traces()["held"], stage.traces()["pending"]) == ([], 0)


def test_one_that_waits_hears_that_its_topic_is_gone(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, is_short=True)
    for version in (12, 13):
        stage.fetch(0, version, wanted(0), session_epoch=-1, **WAITS)
    assert stage.taken == {"short": 2, "general": 0}
    stage.desk.delete("plain")
    stage.desk.run(10)
    codes = [each.responses[0].partitions[0].error_code for each in stage.consumers[0].replies()]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
    assert len(stage.desk.broker.pending_fetches) == 0
    assert sum(stage.desk.broker.requests.times[1].counts) == 2


def test_one_that_waits_is_forgotten_with_its_connection(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, is_short=True)
    stage.fetch(0, 12, wanted(0), session_epoch=-1, **WAITS)
    assert stage.traces()["pending"] == 1
    stage.hang_up(0)
    assert stage.traces()["pending"] == 0
    assert not any(stage.traces()["watchers"].values())
    stage.produce("plain", 0, batch(10))
    stage.desk.run(200)


def test_nodes_and_whoever_has_a_quota_go_the_general_way(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, is_short=True)
    stage.consumers[1].client_id = "millpond-node-7"
    for who in (0, 1):
        stage.fetch(who, 12, wanted(0), session_epoch=-1, max_wait_ms=0, min_bytes=1)
    assert stage.taken == {"short": 1, "general": 1}
    kind = m.AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name="somebody")
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key="consumer_byte_rate", value=1e9)])
    stage.producer.ask(kind(entries=[entry]), 1)
    stage.fetch(0, 12, wanted(0), session_epoch=-1, max_wait_ms=0, min_bytes=1)
    assert stage.taken == {"short": 1, "general": 2}
