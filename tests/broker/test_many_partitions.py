"""A topic with many partitions is created and deleted in slices: what clients see in between."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.later import done
from millpond.broker import housekeeping
from millpond.broker.apis import k19_create_topics
from millpond.broker.replication import high_watermarks
from millpond.broker.replication import replica_manager as topics
from millpond.broker.replication.replica_manager import AT_ONCE
from millpond.wire import messages as m

MANY = 10 * AT_ONCE
LAST = MANY - 1


def create(count: int = MANY) -> m.Message:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name="pond", num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def delete() -> m.Message:
    return m.DeleteTopicsRequest(topic_names=["pond"], timeout_ms=1000)


def metadata() -> m.Message:
    return m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="pond")])


def list_offsets(index: int) -> m.Message:
    partition = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
    return m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic(name="pond", partitions=[partition])])


def fetch(index: int) -> m.Message:
    partition = m.FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
    topic = m.FetchRequest.FetchTopic(topic="pond", partitions=[partition])
    return m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic])


def folders(server: Any) -> list[str]:
    return [name for name in server.disk.list(server.broker.store.folder) if name.startswith("pond-")]


@pytest.fixture
def maker(server: Any) -> Any:
    """A client that has requested a topic, of which some partitions are created."""
    maker = server.connect()
    maker.send(create(), 5)
    server.sim.run_until(lambda: len(server.broker.partitions) > AT_ONCE)
    assert len(server.broker.partitions) < MANY
    return maker


def test_a_topic_creation_is_answered_once_all_partitions_exist(server: Any, maker: Any) -> None:
    assert maker.replies() == []
    server.sim.run_until(lambda: bool(maker.link.received))
    assert len(server.broker.partitions) == len(folders(server)) == MANY
    (reply,) = maker.replies()
    assert (reply.topics[0].error_code, reply.topics[0].num_partitions) == (ErrorCode.NONE, MANY)


def test_what_is_not_there_yet_is_not_unknown(server: Any, maker: Any, make_batch: Any) -> None:
    other = server.connect()
    data = m.ProduceRequest.PartitionProduceData(index=LAST, records=make_batch(b"v"))
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    for request, version in (
        (metadata(), 9),
        (list_offsets(LAST), 5),
        (list_offsets(0), 5),
        (list_offsets(MANY), 5),
        (fetch(LAST), 11),
        (m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9),
    ):
        other.send(request, version)
    described, last, first, beyond, fetched, produced = other.replies()
    assert maker.replies() == [], "all of that was answered while the topic was being made"
    codes = {each.partition_index: each.error_code for each in described.topics[0].partitions}
    assert (described.topics[0].error_code, len(codes)) == (ErrorCode.NONE, MANY)
    assert (codes[0], codes[LAST]) == (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
    assert last.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert first.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert beyond.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_topic_is_deleted_while_it_is_made_and_made_again(server: Any, maker: Any) -> None:
    other = server.connect()
    first_id = server.broker.image.topics["pond"].id
    other.send(delete(), 5)
    other.send(create(), 5)
    server.run()
    (made,), (deleted, again) = maker.replies(), other.replies()
    assert made.topics[0].error_code == ErrorCode.NONE
    assert deleted.responses[0].error_code == ErrorCode.NONE
    assert again.topics[0].error_code == ErrorCode.NONE
    server.run(120_000)
    topic_id = server.broker.image.topics["pond"].id
    assert topic_id != first_id
    assert {each.log.topic_id for each in server.broker.partitions} == {topic_id}
    assert len(server.broker.partitions) == len(folders(server)) == MANY


def test_a_deleted_topic_is_unknown_at_once(server: Any) -> None:
    caller, other = server.connect(), server.connect()
    caller.ask(create(), 5)
    caller.send(delete(), 5)
    server.sim.run_until(lambda: not len(server.broker.partitions))
    other.send(list_offsets(LAST), 5)
    (reply,) = other.replies()
    assert reply.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert caller.replies() == [], "its files are still being taken away"
    server.run()
    assert caller.replies()[0].responses[0].error_code == ErrorCode.NONE


def test_a_node_killed_while_it_makes_a_topic_makes_the_rest_when_it_starts(server: Any, maker: Any) -> None:
    server.node.kill()
    assert server.node.start(), server.node.journal_lines
    assert len(server.broker.partitions) == len(folders(server)) == MANY
    assert not [line for line in server.node.journal_lines if "set aside" in line]


def test_a_node_that_ends_while_it_makes_a_topic_makes_the_rest_when_it_starts(server: Any, maker: Any) -> None:
    ended: list[bool] = []
    server.broker.drain(lambda: ended.append(True))
    server.sim.run_until(lambda: bool(ended))
    (reply,) = maker.replies()
    assert reply.topics[0].error_code == ErrorCode.NONE, "it is in the metadata"
    server.broker.close()
    server.node.kill()
    assert server.node.start(), server.node.journal_lines
    assert len(server.broker.partitions) == len(folders(server)) == MANY


def test_every_shard_of_a_coordinator_is_there_when_the_first_who_asks_hears_of_it(make_server: Any) -> None:
    """Even if another client asked first, and the other coordinator's topic is created in between."""
    server = make_server({"offsets.topic.num.partitions": "50", "transaction.state.log.num.partitions": "50"})
    callers = [server.connect() for _ in range(3)]
    for caller, key_type in zip(callers, (0, 1, 0), strict=True):
        caller.send(m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]), 4)
    left = set(callers)
    while left:
        server.sim.run_until(lambda: any(caller.link.received for caller in left))
        for caller in [each for each in left if each.link.received]:
            left.remove(caller)
            (coordinator,) = caller.replies()[0].coordinators
            assert coordinator.error_code == ErrorCode.NONE
            coordination = server.broker.transactions if caller is callers[1] else server.broker.groups
            assert all(coordination.shard_host_at(index) for index in range(50))
    late = server.connect()
    late.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["h"]), 4)
    for number in range(100):
        request = m.OffsetFetchRequest(group_id=f"g{number}", topics=None)
        assert late.ask(request, 5).error_code == ErrorCode.NONE


def test_who_asks_for_a_coordinator_while_its_topic_is_made_waits_for_all_of_it(make_server: Any) -> None:
    server = make_server({"offsets.topic.num.partitions": "50"})
    first, second = server.connect(), server.connect()
    request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    first.send(request, 4)
    server.sim.run_until(lambda: len(server.broker.partitions) > AT_ONCE)
    second.send(request, 4)
    server.sim.run_until(lambda: bool(second.link.received))
    assert second.replies()[0].coordinators[0].error_code == ErrorCode.NONE
    assert len(list(server.broker.groups.shard_hosts())) == 50


# Long work is sliced. The tests count work rather than time, which depends on the machine.


def steps_until(server: Any, condition: Any, measure: Any) -> list[int]:
    """How much each event changes the measured value, until the condition holds."""
    changes, before = [], measure()
    while not condition():
        assert server.sim.clock.step()
        after = measure()
        changes.append(abs(after - before))
        before = after
    return changes


def test_topics_of_one_request_are_decided_one_after_the_other(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(k19_create_topics, "PARTITIONS_AT_ONCE", 50)
    sizes: list[int] = []
    server.broker.controller.observers.on_change(lambda records: sizes.append(len(records)) or done(None))
    topics = [
        m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for name, count in (("a", 30), ("b.c", 20), ("large", 120), ("twice", 1), ("b_c", 5), ("twice", 1), ("d", 40))
    ]
    reply = server.connect().ask(m.CreateTopicsRequest(topics=topics, timeout_ms=1000), 5)
    codes = {each.name: each.error_code for each in reply.topics}
    assert codes == {
        "a": ErrorCode.NONE,
        "b.c": ErrorCode.NONE,
        "large": ErrorCode.NONE,
        "twice": ErrorCode.INVALID_REQUEST,
        "b_c": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "d": ErrorCode.NONE,
    }
    assert [each.name for each in reply.topics] == list(codes), "in the order in which they were named"
    assert sorted(sizes) == [1 + 40, 1 + 30 + 1 + 20, 1 + 120], "but a topic is never made in parts"


def test_partitions_of_a_deleted_topic_are_told_in_parts(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(topics, "RETIRED_AT_ONCE", 20)
    caller = server.connect()
    caller.ask(create(100), 5)
    partitions = list(server.broker.partitions)
    caller.send(delete(), 5)
    changes = steps_until(
        server,
        lambda: not any(each.is_leader for each in partitions),
        lambda: sum(each.is_leader for each in partitions),
    )
    assert max(changes) <= 20
    assert len(server.broker.partitions) == 0
    server.run()
    assert all(name.endswith("-delete") for name in folders(server))


def test_committed_offsets_are_looked_up_in_parts(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(high_watermarks, "LOOKS_AT_ONCE", 20)
    looked: list[int] = []
    marks_of = high_watermarks._marks_of
    monkeypatch.setattr(high_watermarks, "_marks_of", lambda some: looked.append(len(some)) or marks_of(some))
    server.connect().ask(create(100), 5)
    server.broker.high_watermarks.write()
    assert looked == [20]
    server.run()
    assert looked == [20] * 5 + [0]


def test_a_checkpoint_forces_logs_to_disk_in_parts(server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(housekeeping, "LOOKS_AT_ONCE", 20)
    server.connect().ask(create(100), 5)
    server.run()
    forced: list[Any] = []
    force = server.broker.flusher.force
    monkeypatch.setattr(server.broker.flusher, "force", lambda log: forced.append(log) or force(log))
    assert all(each.log.dirty for each in server.broker.partitions)
    server.broker.housekeeping.checkpoint()
    assert len(forced) == 20
    server.run()
    assert len(forced) == 100
    assert not any(each.log.dirty for each in server.broker.partitions)
