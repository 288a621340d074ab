"""Share groups in process: members join, the share coordinator keeps their delivery state, also over a restart."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, gather
from millpond.broker.coordination.share_state import ReadState, StateSummary
from millpond.broker.metrics.page import PageMaker
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state_batches import RecordState, StateBatch
from millpond.metadata.image import SHARE_STATE_TOPIC, Resource
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m
from millpond.wire.batch import walk

GROUP = "crew"
MEMBER = "11111111-1111-1111-1111-111111111111"


class Members:
    """A broker with a topic, and the calls of share group members to it."""

    def __init__(self, server: Any, topics: tuple[str, ...] = ("pond",)) -> None:
        self.server = server
        self.caller = server.connect()
        self.topics = topics

    def ask(self, request: m.Message, version: int) -> Any:
        return self.caller.ask(request, version, within_ms=5000)

    def find(self, key: str = GROUP, kind: int = 0) -> Any:
        (found,) = self.ask(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 6).coordinators
        return found

    def beat(self, epoch: int, member_id: str = MEMBER) -> Any:
        names = list(self.topics) if epoch == 0 else None
        request = m.ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, subscribed_topic_names=names
        )
        return self.ask(request, 1)

    def join(self, member_id: str = MEMBER) -> dict[UUID, list[int]]:
        """Join and beat until partitions are assigned."""
        self.find()
        reply = self.beat(0, member_id)
        for _ in range(50):
            assert reply.error_code == ErrorCode.NONE, reply
            assigned = (
                {}
                if reply.assignment is None
                else {each.topic_id: each.partitions for each in reply.assignment.topic_partitions}
            )
            if assigned:
                return assigned
            self.server.run(reply.heartbeat_interval_ms)
            reply = self.beat(reply.member_epoch, member_id)
        raise AssertionError(reply)

    def leave(self, member_id: str = MEMBER) -> None:
        assert self.beat(-1, member_id).error_code == ErrorCode.NONE

    def pond(self, number: int = 0, group_id: str = GROUP) -> SharePartition:
        return SharePartition(group_id, self.server.broker.image.topics["pond"].id, number)

    def read(self, key: SharePartition, leader_epoch: int = 0) -> ReadState:
        return self.result(self.server.broker.share_state.read(key, leader_epoch))

    def result(self, later: Any) -> Any:
        ended: list[Any] = []
        later.then(ended.append, ended.append)
        assert self.server.sim.run_until(lambda: bool(ended), within_ms=20_000)
        if isinstance(ended[0], Exception):
            raise ended[0]
        return ended[0]


@pytest.fixture
def members(server: Any) -> Members:
    server.create("pond", 2)
    return Members(server)


def test_a_member_gets_partitions_once_their_state_is_initialised(members: Members) -> None:
    first = members.find()
    assert first.error_code == ErrorCode.NONE
    reply = members.beat(0)
    assert (reply.error_code, reply.member_id, reply.assignment.topic_partitions) == (0, MEMBER, [])
    assert members.join() == {members.pond().topic_id: [0, 1]}
    for number in (0, 1):
        state = members.read(members.pond(number))
        assert state.start_offset == -1
        assert state.batches == []
        assert state.state_epoch >= 1


def test_the_state_topic_is_internal_and_never_compacted(members: Members) -> None:
    members.join()
    topic = members.server.broker.image.topics[SHARE_STATE_TOPIC]
    assert len(topic.partitions) == 50
    (described,) = members.ask(
        m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic.name)]), 12
    ).topics
    assert described.is_internal
    assert (
        members.server.broker.image.config_of(Resource(ResourceType.TOPIC, topic.name))["cleanup.policy"] == "delete"
    )


def test_state_is_written_and_read_and_survives_a_power_cut(members: Members) -> None:
    members.join()
    key, state = members.pond(), members.read(members.pond(), leader_epoch=0)
    batches = [StateBatch(3, 4, RecordState.ACKNOWLEDGED, 0), StateBatch(5, 9, RecordState.AVAILABLE, 2)]
    members.result(members.server.broker.share_state.write(key, state.state_epoch, 0, 3, batches))
    members.server.node.crash()
    assert members.server.node.start()
    assert members.read(key) == ReadState(state.state_epoch, 3, batches)
    summary = members.result(members.server.broker.share_state.summary(key))
    assert summary == StateSummary(state.state_epoch, 0, 3, 2)


def test_a_deposed_leader_is_fenced(members: Members) -> None:
    members.join()
    key, share_state = members.pond(), members.server.broker.share_state
    state = members.read(key, leader_epoch=7)
    with pytest.raises(Refused) as refused:
        members.result(share_state.write(key, state.state_epoch, 6, 0, []))
    assert refused.value.code == ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(Refused) as refused:
        members.result(share_state.write(key, state.state_epoch - 1, 7, 0, []))
    assert refused.value.code == ErrorCode.FENCED_STATE_EPOCH
    assert members.read(key, leader_epoch=7).start_offset == -1


def test_what_was_never_initialised_cannot_be_read(members: Members) -> None:
    with pytest.raises(Refused) as refused:
        members.read(members.pond(group_id="other"))
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_many_calls_of_one_turn_are_few_appends(members: Members) -> None:
    """One batch for each partition of the internal topic, not one for each share partition."""
    members.server.create("wide", 300)
    topic_id = members.server.broker.image.topics["wide"].id
    keys = [SharePartition(GROUP, topic_id, number) for number in range(300)]
    members.join()
    before = state_batches(members)
    asked = [members.server.broker.share_state.initialize(each, 1, 0) for each in keys]
    members.result(gather(asked))
    assert state_batches(members) - before <= 100
    assert all(members.read(each).start_offset == 0 for each in keys[::100])


def test_large_writes_and_reads_take_several_turns(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    members.join()
    members.server.create("wide", 20)
    topic_id = members.server.broker.image.topics["wide"].id
    share_state = members.server.broker.share_state
    keys = [SharePartition(GROUP, topic_id, number) for number in range(20)]
    members.result(gather([share_state.initialize(each, 1, 0) for each in keys]))
    turns: list[int] = []
    send = share_state._batches

    def count(questions: Any) -> Any:
        turns.append(len(questions))
        return send(questions)

    monkeypatch.setattr(share_state, "_batches", count)
    states = (RecordState.ACKNOWLEDGED, RecordState.AVAILABLE)
    batches = [StateBatch(offset, offset, states[offset % 2], 0) for offset in range(300)]
    members.result(gather([share_state.write(each, 1, 0, 0, batches) for each in keys]))
    assert turns == [1] * 20
    del turns[:]
    found = members.result(gather([share_state.read(each, 0) for each in keys]))
    assert found == [ReadState(1, 0, batches)] * 20
    assert max(turns) == 3


def state_batches(members: Members) -> int:
    """How many batches the logs of the share coordinators have."""
    partitions = members.server.broker.partitions.of_topic(members.server.broker.image.topics[SHARE_STATE_TOPIC].id)
    return sum(len(list(walk(each.log.read_batches(0, 1 << 20)))) for each in partitions)


def test_the_state_of_a_deleted_topic_is_deleted(members: Members) -> None:
    members.join()
    key = members.pond()
    members.server.delete("pond")
    members.server.run(1000)
    assert not any(shard.states for shard in members.server.broker.shares.shards())
    with pytest.raises(Refused):
        members.read(key)


def test_a_repeated_call_ends_with_the_cause_if_no_coordinator_is_available(members: Members) -> None:
    members.join()
    members.server.broker.shares.stop()
    with pytest.raises(Refused) as refused:
        members.read(members.pond())
    assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_calls_fail_when_the_node_stops(members: Members) -> None:
    members.join()
    members.server.broker.shares.stop()
    ended: list[Any] = []
    members.server.broker.share_state.read(members.pond(), 0).then(ended.append, ended.append)
    members.server.run(100)
    assert not ended
    members.server.broker.share_state.stop()
    (refused,) = ended
    assert refused.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_coordinator_of_a_share_partition_is_found_by_its_key(members: Members) -> None:
    found = members.find(members.pond().coordinator_key, kind=2)
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, members.server.broker.node_id)
    assert SHARE_STATE_TOPIC in members.server.broker.image.topics
    for key in ("crew", "crew:not-an-id:0", f"{members.pond().coordinator_key}x", ""):
        assert members.find(key, kind=2).error_code == ErrorCode.INVALID_REQUEST
    older = members.ask(m.FindCoordinatorRequest(key_type=2, coordinator_keys=["k"]), 5).coordinators[0]
    assert older.error_code == ErrorCode.INVALID_REQUEST


def test_a_member_that_falls_silent_gives_up_its_partitions(members: Members) -> None:
    members.join()
    members.server.run(46_000)
    described = describe(members)
    assert (described.group_state, described.members) == ("Empty", [])
    assert members.beat(1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def describe(members: Members, group_id: str = GROUP) -> Any:
    (described,) = members.ask(m.ShareGroupDescribeRequest(group_ids=[group_id]), 1).groups
    return described


def test_a_group_is_described_and_listed(members: Members) -> None:
    members.join()
    described = describe(members)
    assert (described.error_code, described.group_state) == (ErrorCode.NONE, "Stable")
    (member,) = described.members
    assert (member.member_id, member.client_id, member.subscribed_topic_names) == (MEMBER, "caller", ["pond"])
    assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [("pond", [0, 1])]
    (listed,) = members.ask(m.ListGroupsRequest(types_filter=["share"]), 5).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == (GROUP, "share", "Stable")
    assert describe(members, "nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_survives_a_power_cut(members: Members) -> None:
    assigned = members.join()
    before = describe(members)
    members.server.node.crash()
    assert members.server.node.start()
    members.caller = members.server.connect()
    members.find()
    assert describe(members).group_epoch == before.group_epoch
    reply = members.beat(before.members[0].member_epoch)
    assert reply.error_code == ErrorCode.NONE
    assert describe(members).members[0].assignment == before.members[0].assignment
    assert set(assigned) == {members.pond().topic_id}


def test_share_groups_need_their_feature(members: Members) -> None:
    assert members.server.broker.image.features["share.version"] == 1
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=3)
    assert members.ask(m.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=[update]), 2).error_code == 0
    members.find()
    assert members.beat(0).error_code == ErrorCode.UNSUPPORTED_VERSION
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="share.version", max_version_level=1, upgrade_type=1)
    assert members.ask(m.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=[update]), 2).error_code == 0
    assert members.beat(0).error_code == ErrorCode.NONE


def test_a_write_that_a_leader_has_given_up_does_not_undo_later_ones(members: Members) -> None:
    members.join()
    key = members.pond()
    epoch = members.read(key).state_epoch
    given_up, latest, other = (members.server.connect() for _ in range(3))
    given_up.client_id = latest.client_id = "millpond-node-2"
    other.client_id = "millpond-node-3"

    def write(caller: Any, start: int) -> int:
        kind = m.WriteShareGroupStateRequest
        given = kind.PartitionData(
            partition=0, state_epoch=epoch, leader_epoch=0, start_offset=start, state_batches=[]
        )
        request = kind(group_id=GROUP, topics=[kind.WriteStateData(topic_id=key.topic_id, partitions=[given])])
        ((result,),) = [each.partitions for each in caller.ask(request, 1, within_ms=5000).results]
        return result.error_code

    assert write(given_up, 1) == ErrorCode.NONE, "as long as it has no other"
    assert write(latest, 2) == ErrorCode.NONE
    assert write(given_up, 3) == ErrorCode.NOT_COORDINATOR
    assert members.read(key).start_offset == 2
    assert write(other, 4) == ErrorCode.NONE


def test_a_deletion_that_arrives_late_does_not_delete_newer_state(members: Members) -> None:
    members.join()
    key = members.pond()
    given_up, latest = (members.server.connect() for _ in range(2))
    given_up.client_id = latest.client_id = "millpond-node-2"
    kinds = m.InitializeShareGroupStateRequest, m.DeleteShareGroupStateRequest
    begin = kinds[0].PartitionData(partition=0, state_epoch=9, start_offset=5)
    begin_late = kinds[0].PartitionData(partition=0, state_epoch=10, start_offset=7)
    requests = {
        "begin": kinds[0](
            group_id=GROUP, topics=[kinds[0].InitializeStateData(topic_id=key.topic_id, partitions=[begin])]
        ),
        "begin late": kinds[0](
            group_id=GROUP, topics=[kinds[0].InitializeStateData(topic_id=key.topic_id, partitions=[begin_late])]
        ),
        "delete": kinds[1](
            group_id=GROUP,
            topics=[
                kinds[1].DeleteStateData(topic_id=key.topic_id, partitions=[kinds[1].PartitionData(partition=0)])
            ],
        ),
    }

    def ask(caller: Any, name: str) -> int:
        ((result,),) = [each.partitions for each in caller.ask(requests[name], 0, within_ms=5000).results]
        return result.error_code

    assert ask(latest, "delete") == ErrorCode.NONE
    assert ask(latest, "begin") == ErrorCode.NONE
    assert ask(given_up, "delete") == ErrorCode.NOT_COORDINATOR
    assert ask(given_up, "begin late") == ErrorCode.NOT_COORDINATOR
    assert members.read(key).start_offset == 5


def test_metrics_have_the_members_of_share_groups_and_no_lag(members: Members) -> None:
    members.join()
    pages: list[Any] = []
    members.server.broker.contexts.bind(PageMaker)().page().then(pages.append)
    assert members.server.sim.run_until(lambda: bool(pages), within_ms=10_000)
    text = b"".join(pages[0].parts).decode()
    assert f'millpond_group_members{{group="{GROUP}"}} 1' in text
    assert f'millpond_group_lag_records{{group="{GROUP}"' not in text


# Offsets of groups, for operators.


def offsets(members: Members, *numbers: int, group_id: str = GROUP) -> Any:
    """The described partitions of the pond, or of all topics without numbers."""
    kind = m.DescribeShareGroupOffsetsRequest
    topics = None
    if numbers:
        topics = [kind.DescribeShareGroupOffsetsRequestTopic(topic_name="pond", partitions=list(numbers))]
    asked = kind.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)
    (group,) = members.ask(kind(groups=[asked]), 1).groups
    return group


def lags(group: Any) -> dict[int, tuple[int, int, int]]:
    """Start offset, lag and error of each partition of the only topic."""
    assert group.error_code == ErrorCode.NONE, group
    (topic,) = group.topics
    assert topic.topic_name == "pond"
    return {each.partition_index: (each.start_offset, each.lag, each.error_code) for each in topic.partitions}


def alter(members: Members, name: str = "pond", group_id: str = GROUP, **starts: int) -> Any:
    """Set start offsets; `p0=5` is offset 5 for partition 0."""
    kind = m.AlterShareGroupOffsetsRequest
    partitions = [
        kind.AlterShareGroupOffsetsRequestPartition(partition_index=int(number[1:]), start_offset=offset)
        for number, offset in starts.items()
    ]
    topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=partitions)
    return members.ask(kind(group_id=group_id, topics=[topic]), 0)


def codes_of(altered: Any) -> list[int]:
    assert altered.error_code == ErrorCode.NONE, altered
    return [each.error_code for topic in altered.responses for each in topic.partitions]


def produce(members: Members, make_batch: Any, count: int) -> None:
    data = m.ProduceRequest.PartitionProduceData(index=0, records=make_batch(*[b"v"] * count))
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    reply = members.ask(m.ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]), 9)
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_lag_is_what_is_not_finished_from_the_start_offset_on(members: Members, make_batch: Any) -> None:
    members.join()
    produce(members, make_batch, 10)
    assert lags(offsets(members)) == {0: (-1, -1, 0), 1: (-1, -1, 0)}
    state = members.read(members.pond())
    finished = [StateBatch(4, 6, RecordState.ACKNOWLEDGED, 0), StateBatch(8, 8, RecordState.ARCHIVED, 0)]
    members.result(members.server.broker.share_state.write(members.pond(), state.state_epoch, 0, 2, finished))
    assert lags(offsets(members)) == {0: (2, 4, 0), 1: (-1, -1, 0)}
    assert lags(offsets(members, 0, 0, 7)) == {0: (2, 4, 0), 7: (-1, -1, 0)}


def test_offsets_of_an_unknown_group_are_those_of_one_that_has_read_nothing(members: Members) -> None:
    members.join()
    assert lags(offsets(members, 0, group_id="other")) == {0: (-1, -1, 0)}
    assert offsets(members, group_id="other").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_are_altered_once_the_members_have_left(members: Members) -> None:
    members.join()
    assert alter(members, p0=5).error_code == ErrorCode.NON_EMPTY_GROUP
    members.leave()
    before = members.read(members.pond())
    assert codes_of(alter(members, p0=5, p7=1)) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes_of(alter(members, "pund", p0=5)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes_of(alter(members, p1=-1)) == [ErrorCode.INVALID_REQUEST]
    after = members.read(members.pond())
    assert (after.start_offset, after.state_epoch > before.state_epoch) == (5, True)
    assert lags(offsets(members, 0, 1)) == {0: (5, 0, 0), 1: (-1, -1, 0)}
    assert alter(members, group_id="other", p0=5).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_leader_that_has_the_state_before_an_alteration_is_fenced(members: Members) -> None:
    members.join()
    old = members.read(members.pond())
    members.leave()
    assert codes_of(alter(members, p0=5)) == [ErrorCode.NONE]
    assert codes_of(alter(members, p0=3)) == [ErrorCode.NONE]
    with pytest.raises(Refused) as refused:
        members.result(members.server.broker.share_state.write(members.pond(), old.state_epoch, 0, 9, []))
    assert refused.value.code == ErrorCode.FENCED_STATE_EPOCH
    assert members.read(members.pond()).start_offset == 3


def delete_offsets(members: Members, *names: str) -> Any:
    kind = m.DeleteShareGroupOffsetsRequest
    topics = [kind.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    return members.ask(kind(group_id=GROUP, topics=topics), 0)


def test_offsets_of_a_topic_are_deleted_and_begin_again_with_the_next_member(members: Members) -> None:
    members.server.create("weir")
    members.join()
    assert delete_offsets(members, "pond").error_code == ErrorCode.NON_EMPTY_GROUP
    members.leave()
    assert codes_of(alter(members, p0=5)) == [ErrorCode.NONE]
    deleted = delete_offsets(members, "pond", "weir", "none")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(each.topic_name, each.error_code) for each in deleted.responses] == [
        ("pond", ErrorCode.NONE),
        ("weir", unknown),
        ("none", unknown),
    ]
    assert not any(shard.states for shard in members.server.broker.shares.shards())
    assert offsets(members).topics == []
    assert members.join() == {members.pond().topic_id: [0, 1]}
    assert members.read(members.pond()).start_offset == -1


def test_a_partition_whose_state_was_deleted_begins_again_though_others_failed(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    members.join()
    members.leave()
    share_state = members.server.broker.share_state
    delete = share_state.delete

    def fail_for_one(key: SharePartition) -> Any:
        if key.partition == 0:
            return delete(key)
        gone = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        result: Later[None] = Later()
        members.server.sim.clock.call_later(1_000, lambda: result.fail(gone))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(share_state, "delete", fail_for_one)
        assert delete_offsets(members, "pond").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Nobody repeats it. Without state, no record of the partition would ever be delivered.
    members.join()
    members.server.run(1_000)
    assert [members.read(members.pond(number)).start_offset for number in (0, 1)] == [-1, -1]


def delete_group(members: Members) -> int:
    (result,) = members.ask(m.DeleteGroupsRequest(groups_names=[GROUP]), 2).results
    return result.error_code


def test_a_group_is_deleted_with_its_delivery_state(members: Members) -> None:
    members.join()
    assert delete_group(members) == ErrorCode.NON_EMPTY_GROUP
    assert any(shard.states for shard in members.server.broker.shares.shards())
    members.leave()
    assert delete_group(members) == ErrorCode.NONE
    assert not any(shard.states for shard in members.server.broker.shares.shards())
    assert delete_group(members) == ErrorCode.GROUP_ID_NOT_FOUND
    assert members.ask(m.ListGroupsRequest(), 5).groups == []


def test_a_group_whose_state_cannot_be_deleted_remains(members: Members) -> None:
    members.join()
    members.leave()
    members.server.broker.shares.stop()
    members.caller.send(m.DeleteGroupsRequest(groups_names=[GROUP]), 2)
    members.server.run(20_000)
    ((result,),) = [each.results for each in members.caller.replies()]
    assert result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert describe(members).group_state == "Empty"


@pytest.fixture
def pruned(make_server: Any) -> Members:
    """A broker that deletes superseded state every second, and writes snapshots after five changes."""
    server = make_server(
        {
            "share.coordinator.state.topic.prune.interval.ms": "1000",
            "share.coordinator.snapshot.update.records.per.snapshot": "5",
            "share.coordinator.state.topic.num.partitions": "1",
        }
    )
    server.create("pond", 2)
    return Members(server)


def test_superseded_state_is_deleted_from_the_log(pruned: Members) -> None:
    members = pruned
    members.join()
    states = {number: members.read(members.pond(number)) for number in (0, 1)}
    for offset in range(40):
        for number, state in states.items():
            batch = StateBatch(offset, offset, RecordState.ACKNOWLEDGED, 0)
            key = members.pond(number)
            members.result(members.server.broker.share_state.write(key, state.state_epoch, 0, offset, [batch]))
        members.server.run(100)
    log = members.server.broker.partitions.get(SHARE_STATE_TOPIC, 0).log
    assert log.end_offset - log.start_offset < 40 < log.start_offset
    members.server.node.crash()
    assert members.server.node.start()
    for number, state in states.items():
        finished = [StateBatch(39, 39, RecordState.ACKNOWLEDGED, 0)]
        assert members.read(members.pond(number)) == ReadState(state.state_epoch, 39, finished)


def test_a_group_of_another_type_may_take_the_name_before_the_order_is_carried_out(members: Members) -> None:
    """The order for delivery state waits until the group is committed, and may find another group."""
    members.find()
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")]
    for request, version in (
        (
            m.ShareGroupHeartbeatRequest(
                group_id=GROUP, member_id=MEMBER, member_epoch=0, subscribed_topic_names=["pond"]
            ),
            1,
        ),
        (m.ShareGroupHeartbeatRequest(group_id=GROUP, member_id=MEMBER, member_epoch=-1), 1),
        (m.DeleteGroupsRequest(groups_names=[GROUP]), 2),
        (
            m.JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=protocols,
            ),
            3,
        ),
    ):
        members.server.connect().send(request, version)
    members.server.run(5_000)
    with pytest.raises(Refused) as refused:
        members.read(members.pond())
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_more_finished_records_than_fit_are_summarised_as_unknown(members: Members) -> None:
    members.join()
    key, share_state = members.pond(), members.server.broker.share_state
    state = members.read(key)
    batch = StateBatch(1, (1 << 32) + 1, RecordState.ACKNOWLEDGED, 0)
    members.result(share_state.write(key, state.state_epoch, 0, 0, [batch]))
    kind = m.ReadShareGroupStateSummaryRequest
    part = kind.PartitionData(partition=key.partition, leader_epoch=-1)
    request = kind(group_id=GROUP, topics=[kind.ReadStateSummaryData(topic_id=key.topic_id, partitions=[part])])
    (result,) = members.ask(request, 1).results
    assert result.partitions[0].delivery_complete_count == -1


def test_senders_of_writes_do_not_fill_the_memory(members: Members) -> None:
    share_state = members.server.broker.share_state
    for number in range(3_000):
        assert share_state.is_latest(f"node {number}", 1)
        assert share_state.is_latest("busy", 2)
    assert len(share_state._senders) == 1_000
    assert not share_state.is_latest("busy", 1)
