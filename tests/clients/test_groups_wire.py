"""What the coordinator rejects and what it keeps, request by request: fencing, offsets, expiry."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from support.groups import NODE_SETTINGS, crew_of, describe, describe_consumer, fetch_offsets, partitions
from support.node import eventually
from support.raw import Raw
from support.raw_groups import ClassicMember, assignment, commit, consumer_heartbeat, subscription

SETTINGS = NODE_SETTINGS | {"offsets.retention.check.interval.ms": "200"}


@pytest.fixture
def ready(raw, topic):
    """A topic with one partition, and a coordinator for the group of the same name."""
    raw.create_topic(topic)
    asked = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[topic])
    assert eventually(lambda: not raw.call(asked, 4).coordinators[0].error_code)
    return topic


def joined_alone(member, topic):
    reply = member.join({"range": subscription([topic])})
    assert not reply.error_code, reply
    assert not member.sync({member.member_id: assignment({topic: [0]})}).error_code


# Fencing.


def test_a_commit_of_a_classic_generation_that_is_over_is_refused(node, raw, ready):
    with ClassicMember(node.port, ready) as member:
        joined_alone(member, ready)
        assert member.commit(ready, 5) == 0
        before = member.generation
        joined_alone(member, ready)
        assert member.generation == before + 1
        assert member.commit(ready, 6, generation=before) == ErrorCode.ILLEGAL_GENERATION
        assert member.heartbeat(generation=before) == ErrorCode.ILLEGAL_GENERATION
        assert commit(raw, ready, ready, 6) == ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(raw, ready, ready, 6, member.generation, "a stranger") == ErrorCode.UNKNOWN_MEMBER_ID
        assert fetch_offsets(raw, ready) == {(ready, 0): 5}
        assert member.commit(ready, 7) == 0
        assert member.leave() == 0
        assert member.commit(ready, 8) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_offsets(raw, ready) == {(ready, 0): 7}


def test_a_commit_between_two_generations_waits_for_the_next(node, raw, ready):
    with ClassicMember(node.port, ready) as one, ClassicMember(node.port, ready) as two:
        joined_alone(one, ready)
        two.ask_to_join({"range": subscription([ready])})
        assert eventually(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        # The generation is unchanged, and what was read in it may be committed before it ends.
        assert one.commit(ready, 3) == 0
        one.ask_to_join({"range": subscription([ready])})
        assert not one.joined().error_code
        assert not two.joined().error_code
        assert one.commit(ready, 4) == ErrorCode.REBALANCE_IN_PROGRESS
    assert fetch_offsets(raw, ready) == {(ready, 0): 3}


def test_a_commit_of_a_member_epoch_that_is_over_is_refused(raw, ready):
    joined = consumer_heartbeat(raw, ready, "m1", 0, subscribed_topic_names=[ready])
    assert not joined.error_code, joined
    epoch = joined.member_epoch
    assert commit(raw, ready, ready, 5, epoch, "m1") == 0
    # Another member causes a new epoch, which the first one learns with its next heartbeat.
    other = consumer_heartbeat(raw, ready, "m2", 0, subscribed_topic_names=[ready])
    assert other.member_epoch > epoch
    owned = m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=raw.topic_id(ready), partitions=[0])
    newer = consumer_heartbeat(raw, ready, "m1", epoch, topic_partitions=[owned])
    assert newer.member_epoch == other.member_epoch
    assert commit(raw, ready, ready, 6, epoch, "m1") == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(raw, ready, ready, 6, newer.member_epoch, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(raw, ready, ready, 6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_offsets(raw, ready) == {(ready, 0): 5}
    assert commit(raw, ready, ready, 7, newer.member_epoch, "m1") == 0
    assert consumer_heartbeat(raw, ready, "m1", newer.member_epoch + 9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert consumer_heartbeat(raw, ready, "m1", -1).member_epoch == -1
    assert commit(raw, ready, ready, 8, newer.member_epoch, "m1") == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_offsets(raw, ready) == {(ready, 0): 7}


@pytest.mark.smoke
def test_a_static_member_is_fenced_by_its_successor(node, raw, ready):
    with ClassicMember(node.port, ready, "i") as old, ClassicMember(node.port, ready, "i") as young:
        joined_alone(old, ready)
        reply = young.join({"range": subscription([ready])})
        assert not reply.error_code
        assert young.member_id != old.member_id
        assert young.generation == old.generation
        assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
        assert old.commit(ready, 3) == ErrorCode.FENCED_INSTANCE_ID
        assert young.commit(ready, 4) == 0
    assert fetch_offsets(raw, ready) == {(ready, 0): 4}


# Offsets.


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_keeps_what_it_can_say(raw, ready, version):
    assert commit(raw, ready, ready, 5, leader_epoch=3, metadata="note", version=version) == 0
    asked = m.OffsetFetchRequest.OffsetFetchRequestTopic(name=ready, partition_indexes=[0, 1])
    found, missing = raw.call(m.OffsetFetchRequest(group_id=ready, topics=[asked]), 5).topics[0].partitions
    # The leader epoch exists from version 6 on.
    assert found.committed_leader_epoch == (3 if version >= 6 else -1)
    assert (found.committed_offset, found.metadata, found.error_code) == (5, "note", 0)
    assert (missing.committed_offset, missing.metadata, missing.error_code) == (-1, "", 0)


def delete_offset(raw, group, topic):
    kind = m.OffsetDeleteRequest
    asked = kind.OffsetDeleteRequestTopic(
        name=topic, partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)]
    )
    reply = raw.call(kind(group_id=group, topics=[asked]), 0)
    return reply.error_code or reply.topics[0].partitions[0].error_code


@pytest.mark.parametrize("protocol", ["range", "consumer"])
def test_offsets_are_deleted_only_of_topics_that_nobody_reads(node, raw, ready, protocol):
    other = f"{ready}-other"
    raw.create_topic(other)
    for topic in (ready, other):
        assert commit(raw, ready, topic, 5) == 0
    with crew_of(node.bootstrap) as crew:
        crew.join(ready, [ready], protocol)
        crew.poll_until_shared(partitions(ready, 1))
        assert delete_offset(raw, ready, ready) == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert delete_offset(raw, ready, other) == 0
        assert fetch_offsets(raw, ready) == {(ready, 0): 5}
    assert delete_offset(raw, ready, ready) == 0
    assert fetch_offsets(raw, ready) == {}
    assert delete_offset(raw, f"{ready}-none", ready) == ErrorCode.GROUP_ID_NOT_FOUND


# Describing what does not exist.


def test_a_group_that_is_not_there_is_dead(raw, ready):
    found = describe(raw, "nobody")
    assert (found.error_code, found.group_state, found.members) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead", [])
    old = raw.call(m.DescribeGroupsRequest(groups=["nobody"]), 5).groups[0]
    assert (old.error_code, old.group_state) == (0, "Dead")
    assert describe_consumer(raw, "nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(raw, ready, ready, 1) == 0
    assert describe_consumer(raw, ready).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe(raw, ready).group_state == "Empty"


def test_groups_are_the_same_after_a_crash(make_node):
    node = make_node(NODE_SETTINGS)
    with Raw(node.port) as raw:
        raw.create_topic("kept")
        asked = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["old", "new"])
        assert eventually(lambda: not raw.call(asked, 4).coordinators[0].error_code)
        with ClassicMember(node.port, "old") as member:
            joined_alone(member, "kept")
            assert member.commit("kept", 4) == 0
            joined = consumer_heartbeat(raw, "new", "m1", 0, subscribed_topic_names=["kept"])
            before = describe(raw, "old"), describe_consumer(raw, "new")
            node.restart(crash=True)
            with Raw(node.port) as again:
                assert (describe(again, "old"), describe_consumer(again, "new")) == before
                assert commit(again, "old", "kept", 5, member.generation, member.member_id) == 0
                assert not consumer_heartbeat(again, "new", "m1", joined.member_epoch).error_code
                assert commit(again, "new", "kept", 6, joined.member_epoch, "m1") == 0
                assert fetch_offsets(again, "old") == {("kept", 0): 5}
                assert fetch_offsets(again, "new") == {("kept", 0): 6}
