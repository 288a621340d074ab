"""Requests with lists of the maximum length: none is handled in one turn of the loop, and they behave like short
ones. Work is counted, which gives the same result on every machine; tests/campaigns/fuzz.py measures time."""

from __future__ import annotations

import gc
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.apis import APIS
from millpond.broker.fetch.consumer_fetch import AT_ONCE_MAX, STEP_PARTITIONS
from millpond.broker.requests.connection import Connection
from millpond.broker.serving.api import AT_ONCE_ITEMS
from millpond.broker.serving.dispatch import Dispatcher
from millpond.broker.serving.pieces import weight
from millpond.wire import messages as m
from millpond.wire import model
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.records import Record, encode_batch
from support.fuzz import watch
from support.fuzz.answers import LENGTH, Answers
from support.fuzz.pools import NOW_MS, Pools
from support.fuzz.scenes import GUEST, OPEN, Scene
from support.fuzz.sweep import sweep
from support.fuzz.target import Target, items_at_once

MANY = 1_300
"""More partitions than are handled at once."""

BY_NAME = {api.name: api for api in APIS}


@pytest.mark.parametrize("scene", [OPEN, GUEST], ids=lambda scene: scene.name)
def test_no_list_is_read_served_or_written_in_one_turn(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TURN_SECONDS_MAX", 60.0)
    decode, encode_parts = model.Message.__dict__["decode"].__func__, model.Message.encode_parts
    too_long: list[str] = []

    def look_at(message: Any, kind: str, most: int) -> None:
        if kind == message.KIND and weight(message) > most:
            too_long.append(f"{type(message).__name__}: {weight(message)}")

    def decoded(cls: Any, *given: Any) -> Any:
        message, end = decode(cls, *given)
        look_at(message, "request", AT_ONCE_ITEMS + 1)
        return message, end

    def encoded(self: Any, version: int) -> Any:
        # A response may have several entries for each item.
        look_at(self, "response", 3 * AT_ONCE_ITEMS)
        return encode_parts(self, version)

    monkeypatch.setattr(model.Message, "decode", classmethod(decoded))
    monkeypatch.setattr(model.Message, "encode_parts", encoded)
    held = sweep(scene, 3_500, tries=1)
    gc.enable()
    gc.unfreeze()
    assert not too_long, "at once"
    beyond = {
        (each.api, each.list_number): each.most_items
        for each in held
        if each.most_items > items_at_once(BY_NAME[each.api])
    }
    assert not beyond, "items in one turn of the loop"
    assert not [each for each in held if "at once" in each.outcome]
    served = {each.api for each in held if "1 answered" in each.outcome and each.size > 10_000}
    assert len(served) > 25, "most of them are answered for all that"


@pytest.mark.slow
def test_what_is_handled_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count above detects it."""
    load = Dispatcher.load

    def load_without_slices(dispatcher: Dispatcher) -> None:
        load(dispatcher)
        for entry in dispatcher._entries.values():
            entry.api = replace(entry.api, at_once=10_000)

    monkeypatch.setattr(Dispatcher, "load", load_without_slices)
    monkeypatch.setattr(watch, "TURN_SECONDS_MAX", 60.0)
    held = sweep(OPEN, 3_500, tries=1)
    gc.enable()
    gc.unfreeze()
    assert {"Produce", "OffsetFetch", "WriteTxnMarkers"} & {each.api for each in held if "at once" in each.outcome}


# What they do.


@pytest.fixture(scope="module")
def target() -> Target:
    with pytest.MonkeyPatch.context() as patch:
        # All of the partitions' files wait for a sync at once.
        patch.setattr("millpond.sim.world.disk.FILES_MAX", 100_000)
        made = Target(0, replace(OPEN, settings={"max.partitions": "3000", "max.partitions.per.topic": "2000"}))
    made.turn.end = lambda _: None  # type: ignore[method-assign]
    made.prepare()
    topic = m.CreateTopicsRequest.CreatableTopic(name="wide", num_partitions=MANY, replication_factor=1)
    assert not made.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7).topics[0].error_code
    made.pass_time(1000)
    return made


class Client:
    """One connection that sends several requests before it reads the first response."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.frames: list[bytes] = []
        answers = Answers(Pools(Random(0)))
        answers.is_judged = False
        answers.take = self._take  # type: ignore[method-assign]
        link = target._accepted("10.1.1.1:1", answers, None)
        assert link is not None
        self.link = link
        self._data = b""

    def _take(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := LENGTH.unpack_from(self._data)[0]):
            self.frames.append(self._data[4 : 4 + size])
            self._data = self._data[4 + size :]

    def send(self, *requests: tuple[m.Message, int]) -> None:
        data = b""
        for number, (request, version) in enumerate(requests):
            assert request.API_KEY is not None
            frame = encode_request_header(request.API_KEY, version, number, "wide") + request.encode(version)
            data += LENGTH.pack(len(frame)) + frame
        self._target.deliver(self.link, data, data[4:])

    def answers(self, *requests: tuple[m.Message, int]) -> list[Any]:
        self.frames.clear()
        self.send(*requests)
        for _ in range(200):
            self._target.pass_time(50)
            if len(self.frames) >= len(requests) or not self.link.alive:
                break
        assert self.link.alive, self.link.fault
        answers = []
        for number, (frame, (request, version)) in enumerate(zip(self.frames, requests, strict=True)):
            assert request.API_KEY is not None
            correlation_id, position = decode_response_header(frame, request.API_KEY, version)
            assert correlation_id == number, "in the order of the requests"
            answers.append(m.response_class(request.API_KEY).decode(frame, version, position)[0])
        return answers


@pytest.fixture
def client(target: Target) -> Client:
    return Client(target)


def produce(values: dict[int, bytes], acks: int = -1) -> tuple[m.Message, int]:
    kind = m.ProduceRequest
    data = [
        kind.PartitionProduceData(index=index, records=encode_batch([Record(0, NOW_MS, b"k", value)]))
        for index, value in values.items()
    ]
    topics = [kind.TopicProduceData(name="wide", partition_data=data)]
    return kind(transactional_id=None, acks=acks, timeout_ms=5000, topic_data=topics), 9


def fetch(offset: int, *, wait_ms: int = 0, partitions: int = MANY) -> tuple[m.Message, int]:
    kind = m.FetchRequest
    wanted = [
        kind.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    topics = [kind.FetchTopic(topic="wide", partitions=wanted)]
    return kind(max_wait_ms=wait_ms, min_bytes=1, max_bytes=64 << 20, session_epoch=-1, topics=topics), 11


def ends(target: Target) -> list[int]:
    partitions = target.node.broker.partitions
    return [partition.log.end_offset for index in range(MANY) if (partition := partitions.get("wide", index))]


def test_batches_are_appended_in_order_and_answered_as_one(target: Target, client: Client) -> None:
    before = ends(target)
    first, second = client.answers(
        produce(dict.fromkeys(range(MANY), b"first")), produce({MANY - 1: b"second", 0: b"second"})
    )
    (topic,) = first.responses
    assert [(each.index, each.error_code) for each in topic.partition_responses] == [(at, 0) for at in range(MANY)]
    assert [each.base_offset for each in topic.partition_responses] == before
    # The small request came after the large one, for the partitions that are last and first in it.
    assert [each.base_offset for each in second.responses[0].partition_responses] == [
        before[MANY - 1] + 1,
        before[0] + 1,
    ]


def test_a_client_that_waits_for_nothing_and_goes_has_written_all_the_same(target: Target, client: Client) -> None:
    before = ends(target)
    client.send(produce(dict.fromkeys(range(MANY), b"v"), acks=0))
    client.link.abort()
    target.pass_time(2000)
    assert ends(target) == [end + 1 for end in before]


def test_all_partitions_are_fetched_some_in_each_turn(
    target: Target, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.answers(produce(dict.fromkeys(range(MANY), b"here")))
    end = max(ends(target))
    steps: list[Any] = []
    run_in_turns = Connection.run_in_turns

    def counted(self: Connection, taken: Any) -> Any:
        def count() -> Any:
            steps.append(None)
            try:
                pending = next(taken)
                while True:
                    steps.append(pending)
                    pending = taken.send((yield pending))
            except StopIteration as over:
                return over.value

        return run_in_turns(self, count())

    monkeypatch.setattr(Connection, "run_in_turns", counted)
    (reply,) = client.answers(fetch(0))
    partitions = reply.responses[0].partitions
    assert len(partitions) == MANY > AT_ONCE_MAX
    assert all(b"here" in bytes(each.records) for each in partitions)
    assert len(steps) > MANY // STEP_PARTITIONS
    (reply,) = client.answers(fetch(end + 5, partitions=3))
    assert {each.error_code for each in reply.responses[0].partitions} == {ErrorCode.OFFSET_OUT_OF_RANGE}


def level(target: Target) -> None:
    """Append until all partitions have the same end offset."""
    while behind := {index: b"even" for index, end in enumerate(ends(target)) if end < max(ends(target))}:
        Client(target).answers(produce(behind))


def test_a_fetch_of_very_many_hears_of_what_comes_while_it_waits_or_reads(target: Target) -> None:
    for pause_ms in (0, 300):
        level(target)
        reader, writer = Client(target), Client(target)
        reader.send(fetch(max(ends(target)), wait_ms=20_000))
        if pause_ms:
            target.pass_time(pause_ms)
        writer.answers(produce({1: b"news"}))
        target.pass_time(1000)
        (frame,) = reader.frames
        assert b"news" in frame, pause_ms
    for partition in target.node.broker.partitions:
        assert not partition.watchers


def watchers(target: Target) -> int:
    return sum(len(partition.watchers) for partition in target.node.broker.partitions)


def test_a_fetch_of_very_many_ends_with_its_connection(target: Target) -> None:
    level(target)
    client = Client(target)
    for pause_ms in (0, 1, 500):
        client.send(fetch(max(ends(target)), wait_ms=20_000))
        target.pass_time(pause_ms)
        client.link.abort()
        target.pass_time(1000)
        assert (watchers(target), len(target.node.broker.pending_fetches)) == (0, 0), pause_ms
        client = Client(target)


def test_a_client_cannot_pile_up_pending_fetches_of_very_many_partitions(target: Target) -> None:
    level(target)
    client = Client(target)
    pending = target.node.broker.pending_fetches
    for _ in range(5):
        client.send(fetch(max(ends(target)), wait_ms=5_000))
    target.pass_time(1000)
    assert len(pending) == 1
    for _ in range(5):
        target.pass_time(6_000)
    assert len(client.frames) == 5
    for _ in range(20):
        client.send(fetch(max(ends(target)), wait_ms=5_000, partitions=400))
    target.pass_time(1000)
    assert (len(pending), watchers(target)) == (3, 3 * 400)
    client.link.abort()
    target.pass_time(1000)
    assert (len(pending), watchers(target)) == (0, 0)


def test_offsets_of_very_many_partitions(client: Client) -> None:
    commit = m.OffsetCommitRequest
    partitions = [
        commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="é")
        for index in range(MANY)
    ]
    topics = [commit.OffsetCommitRequestTopic(name="wide", partitions=partitions)]
    asked = m.OffsetFetchRequest
    indexes = list(range(MANY))
    group = asked.OffsetFetchRequestGroup(
        group_id="crowd", topics=[asked.OffsetFetchRequestTopics(name="wide", partition_indexes=indexes)]
    )
    old = asked.OffsetFetchRequestTopic(name="wide", partition_indexes=indexes)
    committed, told, told_old = client.answers(
        (commit(group_id="crowd", generation_id_or_member_epoch=-1, topics=topics), 8),
        (asked(groups=[group]), 8),
        (asked(group_id="crowd", topics=[old]), 5),
    )
    assert [each.error_code for each in committed.topics[0].partitions] == [0] * MANY
    for partitions in (told.groups[0].topics[0].partitions, told_old.topics[0].partitions):
        assert [(each.partition_index, each.committed_offset) for each in partitions] == [(at, at) for at in indexes]
        assert {each.metadata for each in partitions} == {"é"}


def test_what_must_stay_whole_has_a_limit_of_its_own(client: Client) -> None:
    kind = m.IncrementalAlterConfigsRequest
    configs = [kind.AlterableConfig(name=f"k{each}", config_operation=0, value="v") for each in range(20_000)]
    resource = kind.AlterConfigsResource(resource_type=2, resource_name="wide", configs=configs)
    client.send((kind(resources=[resource]), 1))
    for _ in range(20):
        client._target.pass_time(100)
    assert not client.link.alive
    assert "handled as one" in client.link.fault
