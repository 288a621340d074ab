"""What the broker passes to group coordinators, and the history it keeps for them."""

from __future__ import annotations

import json
from typing import Any

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.coordinator_calls.group_history import HISTORY_TOPIC
from millpond.broker.coordinator_calls.groups import group_settings
from millpond.config.node import node_settings
from millpond.wire import messages as m
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch


def test_settings_reach_the_coordinator_by_their_public_names() -> None:
    told = group_settings(
        node_settings(
            {
                "group.initial.rebalance.delay.ms": "7",
                "offsets.retention.minutes": "3",
                "group.consumer.session.timeout.ms": "50000",
                "group.max.size": "11",
            }
        )
    )
    assert told.initial_rebalance_delay_ms == 7
    assert told.offsets_retention_ms == 180_000
    assert told.consumer.session_timeout_ms == 50_000
    assert (told.group_size_max, told.consumer.classic_max_size) == (11, 11)


def join(caller: Any) -> None:
    """One member of the new protocol joins, with no partitions to read."""
    request = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="me",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["pond"],
        topic_partitions=[],
    )
    reply = caller.ask(request, 1, within_ms=5000)
    assert reply.error_code == 0, reply


def history(server: Any) -> list[dict[str, Any]]:
    partition = server.broker.partitions.get(HISTORY_TOPIC, 0)
    if partition is None:
        return []
    data = partition.log.read_batches(0, 1 << 20)
    records = [record for position, _ in walk(data) for record in decode_batch(data, position)]
    assert all(record.key == b"g" for record in records)
    return [json.loads(record.value) for record in records if record.value is not None]


def test_a_rebalance_is_written_down_when_it_is_over(server: Any) -> None:
    server.create("pond", 2)
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key="g", key_type=0), 3, within_ms=5000)
    join(caller)
    server.run(1000)
    (first, *_) = history(server)
    assert first["group"] == "g"
    assert [cause["why"] for cause in first["causes"]] == ["joined"]
    assert {move["partition"] for move in first["moves"]} == {0, 1}
    assert server.broker.image.topics[HISTORY_TOPIC].is_internal


def commit(caller: Any, offset: int) -> int:
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = kind.OffsetCommitRequestTopic(name="pond", partitions=[partition])
    reply = caller.ask(kind(group_id="g", topics=[topic]), 8)
    return reply.topics[0].partitions[0].error_code


def committed(caller: Any) -> int:
    kind = m.OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(name="pond", partition_indexes=[0])]
    (group,) = caller.ask(kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=topics)]), 8).groups
    return group.topics[0].partitions[0].committed_offset


def test_after_a_moment_of_a_full_disk_a_group_goes_on_without_a_restart(server: Any) -> None:
    server.create("pond")
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    assert commit(caller, 5) == ErrorCode.NONE
    server.disk.fill()
    assert commit(caller, 6) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    server.run(3_000)
    server.disk.make_room()
    server.run(10_000)
    assert committed(caller) == 5
    assert commit(caller, 7) == ErrorCode.NONE
    assert committed(caller) == 7


def test_offsets_of_a_topic_that_was_deleted_while_their_coordinator_was_away_go_too(server: Any) -> None:
    server.create("pond")
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    assert commit(caller, 5) == ErrorCode.NONE
    home = server.broker.groups.shard_host_of("g")
    home.resign(Refused(ErrorCode.KAFKA_STORAGE_ERROR, "no room"))
    server.delete("pond")
    server.create("pond")
    server.run(5_000)
    assert committed(caller) == -1, "the new topic of that name begins at its own beginning"


def test_requests_leave_no_timer_behind(server: Any) -> None:
    """Each commit is watched until it is answered; the watchers must not accumulate."""
    server.create("pond")
    callers = [server.connect() for _ in range(3)]
    callers[0].ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    assert commit(callers[0], 1) == ErrorCode.NONE
    before = server.sim.clock.pending()
    for number in range(200):
        assert commit(callers[number % 3], number) == ErrorCode.NONE
    assert server.sim.clock.pending() < before + 20


def test_groups_that_are_about_to_be_loaded_again_are_not_said_to_be_gone(server: Any) -> None:
    server.create("pond")
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    assert commit(caller, 5) == ErrorCode.NONE
    server.disk.fill()
    assert commit(caller, 6) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    listed = caller.ask(m.ListGroupsRequest(), 4)
    assert (listed.error_code, listed.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    server.disk.make_room()
    server.run(10_000)
    listed = caller.ask(m.ListGroupsRequest(), 4)
    assert (listed.error_code, [each.group_id for each in listed.groups]) == (ErrorCode.NONE, ["g"])
