"""Group requests reach the coordinator of their group, and errors come back in the shape of the request."""

from __future__ import annotations

from typing import Any

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


def find_coordinator(caller: Any, key: str, key_type: int = 0) -> Any:
    return caller.ask(m.FindCoordinatorRequest(key=key, key_type=key_type), 3, within_ms=5000)


def test_before_the_offsets_topic_is_there_every_request_is_told_so(server: Any) -> None:
    caller = server.connect()
    reply = caller.ask(m.HeartbeatRequest(group_id="g", generation_id=1, member_id="x"), 4)
    assert reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    reply = caller.ask(m.DescribeGroupsRequest(groups=["g", "h"]), 5)
    assert [group.error_code for group in reply.groups] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


def test_asking_for_the_coordinator_makes_its_topic(server: Any) -> None:
    caller = server.connect()
    reply = find_coordinator(caller, "g")
    assert (reply.error_code, reply.node_id) == (ErrorCode.NONE, 1)
    topic = server.broker.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 50
    assert topic.is_internal


def test_groups_in_several_partitions_are_answered_together_and_in_order(server: Any) -> None:
    caller = server.connect()
    find_coordinator(caller, "g")
    names = [f"group-{number}" for number in range(8)]
    assert len({server.broker.groups.partition_of(name) for name in names}) > 1
    server.create("pond")
    for place, name in enumerate(names):
        caller.ask(commit(name, place), 8)
    groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    reply = caller.ask(m.OffsetFetchRequest(groups=groups), 8)
    result = [(group.group_id, group.topics[0].partitions[0].committed_offset) for group in reply.groups]
    assert result == [(name, place) for place, name in enumerate(names)]


def commit(group_id: str, offset: int) -> m.OffsetCommitRequest:
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="note"
    )
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="pond", partitions=[partition])
    return m.OffsetCommitRequest(group_id=group_id, topics=[topic])


def test_committed_offsets_survive_a_power_cut(server: Any) -> None:
    caller = server.connect()
    find_coordinator(caller, "g")
    server.create("pond")
    reply = caller.ask(commit("g", 42), 8)
    assert reply.topics[0].partitions[0].error_code == ErrorCode.NONE
    server.node.crash()
    assert server.node.start()
    caller = server.connect()
    reply = caller.ask(
        m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]), 8
    )
    (partition,) = reply.groups[0].topics[0].partitions
    assert (partition.committed_offset, partition.metadata) == (42, "note")


def test_a_deleted_topic_takes_its_offsets_along(server: Any) -> None:
    caller = server.connect()
    find_coordinator(caller, "g")
    server.create("pond")
    caller.ask(commit("g", 42), 8)
    server.delete("pond")
    server.run(100)
    reply = caller.ask(
        m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]), 8
    )
    assert reply.groups[0].topics == []


def test_clients_may_neither_write_to_the_offsets_topic_nor_delete_it(server: Any, make_batch: Any) -> None:
    caller = server.connect()
    find_coordinator(caller, "g")
    data = m.ProduceRequest.PartitionProduceData(index=0, records=make_batch(b"x"))
    topic = m.ProduceRequest.TopicProduceData(name="__consumer_offsets", partition_data=[data])
    reply = caller.ask(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 8)
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    reply = caller.ask(m.DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=1000), 5)
    assert reply.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
