"""Transcripts: a heartbeat goes in, an epoch and an assignment come out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.share.group import INITIALIZE_AGAIN_MS, SOON_MS
from millpond.coordinators.runtime import KEY_LENGTH_MAX
from millpond.coordinators.shares.keys import SharePartition
from millpond.metadata.records import PartitionRecord
from millpond.wire import messages as m


def test_a_member_is_assigned_as_soon_as_delivery_state_exists(harness: Any, in_reply: Any) -> None:
    harness.initializes = False
    joined = harness.heartbeat("m1", 0, ["t"])
    assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 1, SOON_MS)
    assert in_reply(joined) == frozenset()
    assert [order.partitions for order in harness.orders] == [harness.partitions(t=range(8))]

    harness.finish(harness.orders[0])
    told = harness.heartbeat("m1", 1)
    assert (told.member_epoch, told.heartbeat_interval_ms) == (2, 5000)
    assert in_reply(told) == harness.partitions(t=range(8))
    assert in_reply(harness.heartbeat("m1", 2)) is None, "nothing has changed"
    assert in_reply(harness.heartbeat("m1", 2, ["t"])) == harness.partitions(t=range(8)), "a full request"


def test_state_that_could_not_be_initialized_is_ordered_again(harness: Any) -> None:
    harness.initializes = False
    harness.heartbeat("m1", 0, ["t"])
    harness.heartbeat("m1", 1)
    assert len(harness.orders) == 1, "the first order may still succeed"
    harness.finish(harness.orders[0], is_done=False)
    harness.heartbeat("m1", 1)
    assert len(harness.orders) == 2
    harness.wait(INITIALIZE_AGAIN_MS)
    harness.heartbeat("m1", 1)
    assert len(harness.orders) == 3, "an order without a result"


def test_all_members_read_all_of_a_few_partitions(harness: Any, in_reply: Any) -> None:
    assert in_reply(harness.join("m1", "t")) == harness.partitions(t=range(8))
    assert in_reply(harness.join("m2", "t")) == harness.partitions(t=range(8))
    assert in_reply(harness.heartbeat("m1", 2)) is None, "a second member takes nothing away"
    assert harness.group.state_name == "Stable"


def test_a_member_that_leaves_is_removed(harness: Any) -> None:
    harness.join("m1", "t")
    assert harness.heartbeat("m1", -1).member_epoch == -1
    assert harness.group.state_name == "Empty"
    assert harness.group.next_deadline_ms() is None
    assert harness.heartbeat("m1", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("m1", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_may_subscribe_to_nothing_once_it_has_joined(harness: Any, in_reply: Any) -> None:
    """The Java client does so before it leaves."""
    joined = harness.join("m1", "t")
    assert in_reply(joined) == harness.partitions(t=range(8))
    reply = harness.heartbeat("m1", joined.member_epoch, [])
    assert (reply.error_code, in_reply(reply)) == (ErrorCode.NONE, frozenset())
    assert harness.heartbeat("m2", 0, []).error_code == ErrorCode.INVALID_REQUEST


def test_a_silent_member_is_removed_after_its_session(harness: Any) -> None:
    harness.join("m1", "t")
    harness.wait(44_999)
    assert harness.heartbeat("m1", 2).error_code == 0
    harness.wait(44_999)
    assert not harness.group.is_empty
    harness.wait(1)
    assert harness.group.is_empty


def test_an_old_epoch_is_fenced_but_the_previous_one_is_not(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "t")
    changed = harness.heartbeat("m1", 2, ["u"])
    assert (changed.error_code, changed.member_epoch) == (0, 3)
    repeated = harness.heartbeat("m1", 2, ["u"])
    assert (repeated.error_code, in_reply(repeated)) == (0, harness.partitions(u=range(8)))
    assert harness.heartbeat("m1", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert harness.heartbeat("m1", 99).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert harness.heartbeat("m1", 0, ["u"]).error_code == 0, "it joins again"


@pytest.mark.parametrize(
    ("member_id", "epoch", "topics", "rack"),
    [
        ("", 0, ["t"], None),
        ("x" * 37, 0, ["t"], None),
        ("m", -2, ["t"], None),
        ("m", 0, None, None),
        ("m", 0, [], None),
        ("m", 0, ["t"], " "),
    ],
)
def test_malformed_requests_are_refused(
    harness: Any, member_id: str, epoch: int, topics: list[str] | None, rack: str | None
) -> None:
    response = harness.heartbeat(member_id, epoch, topics, rack=rack)
    assert response.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if epoch else ErrorCode.INVALID_REQUEST)
    assert "g" not in harness.coordinator.shard.groups


def test_a_full_group_refuses_another_member(make_coordinator: Any) -> None:
    from millpond.coordinators.groups.share.settings import ShareGroupSettings

    coordinator = make_coordinator(share=ShareGroupSettings(max_size=1))
    body = m.ShareGroupHeartbeatRequest(
        group_id="g", member_id="m1", member_epoch=0, subscribed_topic_names=["t"], rack_id=None
    )
    assert coordinator.answer(coordinator.send(body, 1)).error_code == 0
    body.member_id = "m2"
    refused = coordinator.answer(coordinator.send(body, 1))
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "group.share.max.size=1" in refused.error_message


def test_a_topic_that_grows_is_assigned_once_its_new_partitions_have_state(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "t")
    image = harness.coordinator.image
    image.replay(PartitionRecord(8, image.topics["t"].id, (1,), (1,), leader=1))
    harness.initializes = False
    harness.topics_changed("t")
    assert harness.orders[-1].partitions == harness.partitions(t=[8])
    assert in_reply(harness.heartbeat("m1", 2)) is None
    harness.finish(harness.orders[-1])
    assert in_reply(harness.heartbeat("m1", 2)) == harness.partitions(t=range(9))


def test_a_recreated_topic_is_another_topic(harness: Any, in_reply: Any, remove_topic: Any, add_topic: Any) -> None:
    harness.join("m1", "t")
    remove_topic("t")
    harness.topics_changed("t")
    assert in_reply(harness.heartbeat("m1", 2)) == frozenset()
    assert not harness.group.state.initialized
    add_topic("t")
    harness.topics_changed("t")
    assert in_reply(harness.heartbeat("m1", 3)) == harness.partitions(t=[0])


def test_members_and_delivery_state_survive_a_failover(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "t")
    before = harness.group.state
    harness.coordinator.fail_over()
    assert harness.group.state == before
    assert in_reply(harness.heartbeat("m1", 2)) is None
    harness.wait(45_000)
    assert harness.group.is_empty, "a member that does not return after the failover"


def test_memory_is_counted_and_freed(harness: Any) -> None:
    memory = harness.coordinator.shard.memory
    harness.join("m1", "t", "u")
    assert memory.used_bytes == harness.group.kept_bytes > 0
    assert harness.coordinator.loaded_again().memory.used_bytes == memory.used_bytes
    harness.heartbeat("m1", -1)
    harness.delete_state()
    harness.coordinator.send(m.DeleteGroupsRequest(groups_names=["g"]), 2)
    assert memory.used_bytes == 0


def test_a_group_without_room_in_memory_is_refused(harness: Any) -> None:
    harness.coordinator.bytes_max = 1_000
    assert harness.heartbeat("m1", 0, ["t"]).error_code == ErrorCode.POLICY_VIOLATION
    assert "g" not in harness.coordinator.shard.groups


def test_delivery_state_counts_as_memory_of_its_group(harness: Any) -> None:
    """Otherwise one client with many groups could fill the share coordinators: 32 million partitions were allowed."""
    harness.coordinator.bytes_max = 8_000
    assert harness.heartbeat("m1", 0, ["t"]).error_code == ErrorCode.POLICY_VIOLATION
    assert harness.orders == []
    harness.coordinator.bytes_max = 12_000
    harness.join("m1", "t")
    assert harness.heartbeat("m1", 0, ["t"], group_id="h").error_code == ErrorCode.POLICY_VIOLATION
    assert len(harness.orders) == 1


# The other kinds of groups.


def test_consumers_cannot_join_a_share_group(harness: Any) -> None:
    harness.join("m1", "t")
    coordinator = harness.coordinator
    consumer = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="c",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert coordinator.answer(coordinator.send(consumer, 1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    classic = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    assert coordinator.answer(coordinator.send(classic, 3)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    leave = m.LeaveGroupRequest(group_id="g", member_id="m1")
    assert coordinator.answer(coordinator.send(leave, 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    beat = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m1")
    assert coordinator.answer(coordinator.send(beat, 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[
            m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=1, committed_metadata=""
            )
        ],
    )
    commit = m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic])
    (answered,) = coordinator.answer(coordinator.send(commit, 7)).topics
    assert answered.partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_share_members_cannot_join_a_consumer_group(harness: Any) -> None:
    consumer = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="c",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    harness.coordinator.send(consumer, 1)
    assert harness.heartbeat("m1", 0, ["t"]).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Tools.


def test_tools_see_the_group(harness: Any) -> None:
    harness.join("m1", "t")
    coordinator = harness.coordinator
    described, missing = coordinator.answer(
        coordinator.send(m.ShareGroupDescribeRequest(group_ids=["g", "other"]), 1)
    ).groups
    assert (described.group_state, described.group_epoch, described.assignor_name) == ("Stable", 2, "simple")
    (member,) = described.members
    assert (member.member_id, member.subscribed_topic_names, member.client_host) == ("m1", ["t"], "/10.0.0.1")
    assert member.assignment.topic_partitions[0].topic_name == "t"
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (listed,) = coordinator.shard.list_groups(types=["share"])
    assert (listed.group_id, listed.protocol_type, listed.group_type) == ("g", "share", "share")
    assert not coordinator.shard.list_groups(types=["consumer", "classic"])


def test_a_group_is_deleted_only_after_its_delivery_state(harness: Any) -> None:
    """Otherwise a new group of this name would go on where the old one stopped."""
    harness.join("m1", "t")
    coordinator = harness.coordinator

    def delete() -> int:
        (result,) = coordinator.answer(coordinator.send(m.DeleteGroupsRequest(groups_names=["g"]), 2)).results
        return int(result.error_code)

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    harness.heartbeat("m1", -1)
    assert delete() == ErrorCode.NON_EMPTY_GROUP
    topics = coordinator.shard.share_topics("g")
    assert [topic.name for topic in topics.values()] == ["t"]
    harness.delete_state()
    assert delete() == 0
    assert "g" not in coordinator.loaded_again().groups
    with pytest.raises(Refused):
        coordinator.shard.share_topics("g")


def test_a_group_whose_state_could_have_no_coordinator_is_refused(harness: Any) -> None:
    """Its members would come back every 50 ms for partitions that they never get."""
    assert harness.heartbeat("m1", 0, ["t"], group_id="g" * 967).error_code == ErrorCode.INVALID_REQUEST
    longest = SharePartition("g" * 966, UUID(int=1), (1 << 31) - 1)
    assert len(longest.coordinator_key) == KEY_LENGTH_MAX
    assert harness.heartbeat("m1", 0, ["t"], group_id=longest.group_id).error_code == 0


def test_delivery_state_is_ordered_again_after_a_deletion_that_failed(harness: Any) -> None:
    """Of some partitions it is gone: members would wait for it forever."""
    harness.join("m1", "t")
    harness.heartbeat("m1", -1)
    ended = harness.begin_deletion()
    before = list(harness.orders)
    joined = harness.heartbeat("m1", 0, ["t"])
    assert joined.heartbeat_interval_ms < 100, "it comes back soon"
    assert harness.orders == before, "what is ordered now would be deleted"
    ended(is_done=False)
    again = harness.heartbeat("m1", joined.member_epoch)
    assert harness.orders == [*before, before[0]]
    harness.heartbeat("m1", again.member_epoch)
    assert harness.partitions_now("m1") == harness.partitions(t=range(8))


def test_a_deletion_that_a_failover_interrupts_is_as_one_that_failed(harness: Any) -> None:
    harness.join("m1", "t")
    harness.heartbeat("m1", -1)
    harness.begin_deletion()
    before = list(harness.orders)
    harness.coordinator.shard = harness.coordinator.loaded_again()
    harness.join("m1", "t")
    assert harness.orders == [*before, before[0]]
    assert not harness.group.state.deleting


def test_two_deletions_at_once_both_have_to_end(harness: Any) -> None:
    harness.join("m1", "t")
    harness.heartbeat("m1", -1)
    one, other = harness.begin_deletion(), harness.begin_deletion()
    before = list(harness.orders)
    one(is_done=True)
    joined = harness.heartbeat("m1", 0, ["t"])
    assert harness.orders == before
    other(is_done=True)
    harness.heartbeat("m1", joined.member_epoch)
    assert len(harness.orders) == len(before) + 1


def test_delivery_state_that_comes_too_late_does_not_bring_back_a_deleted_group(harness: Any) -> None:
    harness.initializes = False
    harness.heartbeat("m1", 0, ["t"])
    harness.heartbeat("m1", -1)
    harness.coordinator.send(m.DeleteGroupsRequest(groups_names=["g"]), 2)
    harness.finish(harness.orders[0])
    assert "g" not in harness.coordinator.shard.groups


def test_an_empty_group_is_kept_though_it_has_no_offsets(harness: Any) -> None:
    """What it has finished is with the share coordinator, and does not expire."""
    harness.join("m1", "t")
    harness.heartbeat("m1", -1)
    for _ in range(20):
        harness.wait(24 * 3600 * 1000)
    assert "g" in harness.coordinator.shard.groups
