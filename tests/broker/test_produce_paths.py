"""The short and the general path of Produce give the same responses and write the same records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from struct import pack_into
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire import messages as m
from millpond.wire.batch import batch_crc
from millpond.wire.records import Record, encode_batch
from support.seeds import seeds

PATHS = {"short": {}, "general": {"short": None}}
STEPS = 400
TOPICS = {
    "plain": {},
    "small": {"segment_bytes": "16384", "index_interval_bytes": "300", "max_message_bytes": "900"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "compacted": {"cleanup_policy": "compact"},
    "strict": {"message_timestamp_before_max_ms": "5000", "message_timestamp_after_max_ms": "5000"},
    "unsynced": {"flush_ack": "never", "flush_messages": "7"},
}


class Stage:
    """A broker with its producers; on the path "general" no request takes the short one."""

    def __init__(self, make_desk: Callable[..., Any], path: str) -> None:
        self.desk = make_desk()
        self.taken = {"short": 0, "general": 0}
        for name, configs in TOPICS.items():
            self.desk.create(name, 2, **configs)
        self.producers = [self.desk.connect() for _ in range(3)]
        self.producers[2].client_id = "prodüzent"
        self.heard: list[list[bytes]] = [[], [], []]
        entry = self.desk.broker.dispatcher._entries[0]
        self._api = entry.api
        entry.api = replace(entry.api, **{"short": self._counted("short"), "handle": self._general, **PATHS[path]})

    def _counted(self, path: str) -> Callable[..., bool]:
        def short(*args: Any) -> bool:
            is_taken = self._api.short(*args)
            self.taken[path] += is_taken
            return is_taken

        return short

    def _general(self, *args: Any) -> Any:
        self.taken["general"] += 1
        return self._api.handle(*args)

    def send(self, who: int, version: int, acks: int, topic: str, index: int, records: bytes | None) -> None:
        found = self.desk.broker.image.topics[topic]
        data = m.ProduceRequest.PartitionProduceData(index=index, records=records and memoryview(records))
        named = {"topic_id": found.id} if version >= 13 else {"name": topic}
        part = m.ProduceRequest.TopicProduceData(**named, partition_data=[data])
        request = m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[part])
        self.producers[who].send(request, version, is_answered=acks != 0)

    def hear(self) -> list[list[bytes]]:
        for each, heard in zip(self.producers, self.heard, strict=True):
            heard += each.link.frames()
        return self.heard

    def traces(self) -> dict[str, Any]:
        """The state that the requests leave, on disk and in memory."""
        broker = self.desk.broker
        found: dict[str, Any] = {}
        for partition in broker.partitions:
            log = partition.log
            log.segments.active.flush_indexes()
            found[str(partition.name)] = (
                (log.end_offset, log.last_append_ms, log.epochs.entries, len(log.segments)),
                [(each.size, each.max_timestamp, each.max_timestamp_offset) for each in log.segments],
                {
                    number: (entry.epoch, entry.spans, entry.forgotten, entry.active_ms)
                    for number, entry in log.producers.entries.items()
                },
                (partition.written_bytes, partition.written_records, sum(partition.acknowledged.counts)),
            )
        requests = broker.requests
        found["requests"] = requests.received[0], sum(requests.times[0].counts), requests.errors
        found["files"] = {path: data for path, data in self.desk.disk.contents().items() if "__" not in path}
        return found


class Author:
    """Generates valid and invalid requests."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sequences: dict[tuple[str, int, int], int] = {}

    def request(self, now_ms: int) -> tuple[int, int, int, str, int, bytes | None]:
        random = self._random
        topic, index = random.choice([*TOPICS]), random.choice((0, 0, 0, 1, 1, 2))
        records = random.choices((self._batch(topic, index, now_ms), None, b""), (60, 1, 1))[0]
        if records and random.random() < 0.2:
            records = self._spoilt(records)
        who = random.choices((0, 1, 2), (6, 3, 1))[0]
        return who, random.randint(3, 13), random.choices((1, -1, 0, 2), (20, 20, 1, 1))[0], topic, index, records

    def _batch(self, topic: str, index: int, now_ms: int) -> bytes:
        random = self._random
        lag = random.choices((0, 4_000, -4_000, 6_000, -6_000, 10**8, -(10**9)), (40, 3, 3, 1, 1, 1, 1))[0]
        stamp = random.choices((now_ms + lag, -1), (40, 1))[0]
        key = random.choices((b"k", None), (20, 1))[0]
        count, size = random.choice((1, 1, 1, 2, 5)), random.choice((1, 10, 100, 400, 900))
        values = [random.randbytes(size) for _ in range(count)]
        fields: dict[str, Any] = {"codec": random.choices(range(5), (20, 1, 1, 1, 1))[0]}
        if random.random() < 0.4:
            producer = topic, index, random.randint(1, 2)
            expected = self._sequences.get(producer, 0)
            sequence = max(expected + random.choices((0, -count, 1), (12, 2, 1))[0], 0)
            if sequence == expected:
                self._sequences[producer] = expected + count
            fields |= {"producer_id": producer[2], "producer_epoch": 0, "base_sequence": sequence}
        return encode_batch([Record(at, stamp, key, value) for at, value in enumerate(values)], **fields)

    def _spoilt(self, records: bytes) -> bytes:
        random = self._random
        changed = bytearray(records)
        match random.randrange(4):
            case 0:
                return bytes(changed[: random.randrange(len(changed))])
            case 1:
                return bytes(changed + changed)
            case 2:
                changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
            case _:
                changed[random.randrange(21, 61)] ^= 1 << random.randrange(8)
                pack_into(">I", changed, 17, batch_crc(changed, 0, len(changed)))
        return bytes(changed)


@pytest.mark.parametrize("seed", seeds(range(12)))
def test_both_paths_answer_and_write_the_same(make_desk: Callable[..., Any], seed: int) -> None:
    stages = [Stage(make_desk, path) for path in PATHS]
    author, random = Author(Random(seed)), Random(seed)
    now_ms = WALL_START_MS
    for _ in range(STEPS):
        match random.choices(("send", "run", "fill", "make room"), (80, 10, 1, 4))[0]:
            case "send":
                request = author.request(now_ms)
                for stage in stages:
                    try:
                        stage.send(*request)
                    except Exception as error:
                        stage.heard[request[0]].append(repr(error).encode())
            case "run":
                lasts_ms = random.choice((0, 1, 20))
                now_ms += lasts_ms
                for stage in stages:
                    stage.desk.run(lasts_ms)
            case "fill":
                # With little space left, a write stops in the middle of a batch.
                left_bytes = random.choice((0, 0, 30, 100, 700))
                for stage in stages:
                    stage.desk.disk.fill(left_bytes)
            case "make room":
                # The node notices within a second that it can write again.
                now_ms += 1_000
                for stage in stages:
                    stage.desk.disk.make_room()
                    stage.desk.run(1_000)
    for stage in stages:
        stage.desk.disk.make_room()
        stage.desk.run(1_000)
    short, general = stages
    assert short.hear() == general.hear()
    short_traces, general_traces = short.traces(), general.traces()
    for name in general_traces:
        assert short_traces[name] == general_traces[name], name
    assert short.taken["short"] > STEPS // 10
    assert general.taken["short"] == 0
    assert general.taken["general"] > short.taken["general"]


def test_small_and_valid_requests_take_the_short_path(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, "short")
    for version in range(3, 14):
        for acks in (1, -1):
            stage.send(0, version, acks, "plain", 0, encode_batch([Record(0, WALL_START_MS, None, b"v")]))
    stage.desk.run(100)
    # Not the first batch of a log: its segment has no age yet, and its leader epoch has not begun.
    assert stage.taken == {"short": 21, "general": 1}
    assert len(stage.hear()[0]) == 22


def test_the_general_path_refuses_what_the_short_one_cannot_write(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, "short")
    records = encode_batch([Record(0, WALL_START_MS, None, b"v")])
    for _ in range(2):
        stage.send(0, 9, 1, "plain", 0, records)
    stage.desk.disk.fill()
    stage.send(0, 9, 1, "plain", 0, records)
    stage.desk.disk.make_room()
    stage.desk.run(1_000)
    stage.send(0, 9, 1, "plain", 0, records)
    answers = [reply.responses[0].partition_responses[0] for reply in stage.producers[0].replies()]
    codes = [(each.error_code, each.base_offset) for each in answers]
    assert codes == [(0, 0), (0, 1), (ErrorCode.KAFKA_STORAGE_ERROR, -1), (0, 2)]
    assert stage.taken == {"short": 2, "general": 2}


def test_large_batches_take_the_general_path(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, "short")
    records = encode_batch([Record(0, WALL_START_MS, None, b"v" * (2 << 20))])
    for _ in range(3):
        stage.send(0, 9, 1, "plain", 0, records)
    assert stage.taken == {"short": 0, "general": 3}
    assert len(stage.hear()[0]) == 3


def test_while_any_client_has_a_quota_no_request_takes_the_short_path(make_desk: Callable[..., Any]) -> None:
    stage = Stage(make_desk, "short")
    records = encode_batch([Record(0, WALL_START_MS, None, b"v")])
    for _ in range(2):
        stage.send(0, 9, 1, "plain", 0, records)
    assert stage.taken["short"] == 1
    kind = m.AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name="somebody")
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key="producer_byte_rate", value=1e9)])
    stage.producers[1].ask(kind(entries=[entry]), 1)
    for _ in range(2):
        stage.send(0, 9, 1, "plain", 0, records)
    assert stage.taken == {"short": 1, "general": 3}
    assert len(stage.hear()[0]) == 4
