"""Which produce requests take the short path. `test_short_paths.py` compares it with the general path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millpond.base.errors import ErrorCode
from millpond.sim.world.clock import WALL_START_MS
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch


class ProduceBroker:
    """A broker that counts which path each request of its producer takes."""

    def __init__(self, make_server: Callable[..., Any]) -> None:
        self.server = make_server()
        self.taken = {"short": 0, "general": 0}
        self.server.create("plain", 2)
        self.producer = self.server.connect()
        entry = self.server.broker.dispatcher._entries[0]
        self._api = entry.api
        entry.api = replace(entry.api, short=self._short, handle=self._general)

    def _short(self, *args: Any) -> bool:
        is_taken = self._api.short(*args)
        self.taken["short"] += is_taken
        return is_taken

    def _general(self, *args: Any) -> Any:
        self.taken["general"] += 1
        return self._api.handle(*args)

    def send(self, records: bytes, version: int = 9, acks: int = 1) -> None:
        topic = self.server.broker.image.topics["plain"]
        data = m.ProduceRequest.PartitionProduceData(index=0, records=memoryview(records))
        named = {"topic_id": topic.id} if version >= 13 else {"name": "plain"}
        part = m.ProduceRequest.TopicProduceData(**named, partition_data=[data])
        self.producer.send(m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[part]), version)


def test_small_and_valid_requests_take_the_short_path(make_server: Callable[..., Any]) -> None:
    target = ProduceBroker(make_server)
    for version in range(3, 14):
        for acks in (1, -1):
            target.send(encode_batch([Record(0, WALL_START_MS, None, b"v")]), version, acks)
    target.server.run(100)
    # Not the first batch of a log: its segment has no age yet, and its leader epoch has not begun.
    assert target.taken == {"short": 21, "general": 1}
    assert len(target.producer.replies()) == 22


def test_the_general_path_refuses_what_the_short_one_cannot_write(make_server: Callable[..., Any]) -> None:
    target = ProduceBroker(make_server)
    records = encode_batch([Record(0, WALL_START_MS, None, b"v")])
    for _ in range(2):
        target.send(records)
    target.server.disk.fill()
    target.send(records)
    target.server.disk.make_room()
    target.server.run(1_000)
    target.send(records)
    answers = [reply.responses[0].partition_responses[0] for reply in target.producer.replies()]
    codes = [(each.error_code, each.base_offset) for each in answers]
    assert codes == [(0, 0), (0, 1), (ErrorCode.KAFKA_STORAGE_ERROR, -1), (0, 2)]
    assert target.taken == {"short": 2, "general": 2}


def test_large_batches_take_the_general_path(make_server: Callable[..., Any]) -> None:
    target = ProduceBroker(make_server)
    records = encode_batch([Record(0, WALL_START_MS, None, b"v" * (2 << 20))])
    for _ in range(3):
        target.send(records)
    assert target.taken == {"short": 0, "general": 3}
    assert len(target.producer.replies()) == 3


def test_while_any_client_has_a_quota_no_request_takes_the_short_path(make_server: Callable[..., Any]) -> None:
    target = ProduceBroker(make_server)
    records = encode_batch([Record(0, WALL_START_MS, None, b"v")])
    for _ in range(2):
        target.send(records)
    assert target.taken["short"] == 1
    kind = m.AlterClientQuotasRequest
    entity = kind.EntityData(entity_type="client-id", entity_name="somebody")
    entry = kind.EntryData(entity=[entity], ops=[kind.OpData(key="producer_byte_rate", value=1e9)])
    target.server.connect().ask(kind(entries=[entry]), 1)
    for _ in range(2):
        target.send(records)
    assert target.taken == {"short": 1, "general": 3}
    assert len(target.producer.replies()) == 4
