"""OffsetCommit, TxnOffsetCommit and OffsetDelete as a play."""

from collections.abc import Callable
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


def test_consumer_without_a_group_keeps_its_offsets_here(coordinator) -> None:
    assert coordinator.commit(42) == 0
    assert coordinator.committed() == 42
    assert (coordinator.group().state_name, coordinator.group().protocol_type) == ("Empty", None)
    assert coordinator.loaded_again().offsets.by_group == coordinator.shard.offsets.by_group


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_commits(coordinator, version: int) -> None:
    assert coordinator.commit(version, version=version) == 0
    assert coordinator.committed() == version


def test_member_commits_in_its_generation(coordinator) -> None:
    (member,), generation = coordinator.stable()
    assert coordinator.commit(5, member, generation) == 0
    assert coordinator.commit(6, member, generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert coordinator.commit(6, "stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(6, member, generation, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.committed() == 5


def test_commit_during_a_rebalance(coordinator) -> None:
    (member,), generation = coordinator.stable()
    _, joining = coordinator.join_new()
    assert coordinator.commit(1, member, generation) == 0
    again = coordinator.join(member)
    assert coordinator.answer(again).generation_id == coordinator.answer(joining).generation_id == 2
    assert coordinator.commit(2, member, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.committed() == 1


def test_commit_is_a_sign_of_life(coordinator) -> None:
    (member,), generation = coordinator.stable()
    for offset in range(4):
        coordinator.pass_time(9000)
        assert coordinator.commit(offset, member, generation) == 0


def test_generation_of_a_group_that_is_not_there(coordinator) -> None:
    assert coordinator.commit(1, "m", 3, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert coordinator.commit(1, "m", 3, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert coordinator.shard.groups == {}


def test_empty_group_takes_commits_from_an_administrator(coordinator) -> None:
    (member,), _ = coordinator.stable()
    coordinator.leave(member)
    assert coordinator.commit(9) == 0
    assert coordinator.committed() == 9


def test_topics_and_partitions_must_exist(coordinator) -> None:
    assert coordinator.commit(1, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.commit(1, partition=8) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.commit(1, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.shard.groups == {}
    assert coordinator.log == []


def test_version_10_names_topics_by_id(coordinator) -> None:
    assert coordinator.commit(7, version=10, topic="", topic_id=UUID(int=2)) == 0
    assert coordinator.committed(topic="u") == 7
    assert coordinator.commit(7, version=10, topic="", topic_id=UUID(int=99)) == ErrorCode.UNKNOWN_TOPIC_ID


def test_metadata_and_leader_epoch_come_back(coordinator) -> None:
    assert coordinator.commit(1, metadata="häuser" * 100, leader_epoch=4) == 0
    kind = m.OffsetFetchRequest
    asked = kind.OffsetFetchRequestGroup(group_id="g", topics=None)
    (topic,) = coordinator.ask(kind(groups=[asked]), 8).groups[0].topics
    assert (topic.partitions[0].metadata, topic.partitions[0].committed_leader_epoch) == ("häuser" * 100, 4)


def test_metadata_has_a_limit(coordinator) -> None:
    assert coordinator.commit(1, metadata="x" * 4096) == 0
    assert coordinator.commit(2, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert coordinator.committed() == 1
    assert coordinator.commit(3, metadata=None) == 0


def test_old_clients_may_say_how_long_an_offset_is_kept(coordinator) -> None:
    assert coordinator.commit(1, version=2, retention_time_ms=1000) == 0
    assert coordinator.commit(2, version=2, partition=1) == 0
    coordinator.pass_time(600_000)
    assert coordinator.committed() == -1
    assert coordinator.committed(1) == 2


def test_an_offset_may_be_kept_for_longer_than_time_can_be_told(coordinator) -> None:
    assert coordinator.commit(1, version=2, retention_time_ms=(1 << 63) - 1) == 0
    coordinator.pass_time(600_000)
    assert coordinator.committed() == 1


class TestTransactions:
    def test_offset_counts_when_the_transaction_is_committed(self, coordinator) -> None:
        coordinator.commit(1)
        assert coordinator.commit_in_transaction(10) == 0
        assert coordinator.committed() == 1
        coordinator.marker(7, 0, True)
        assert coordinator.committed() == 10

    def test_aborted_offset_is_dropped_and_leaves_no_group(self, coordinator) -> None:
        coordinator.commit_in_transaction(10)
        assert "g" in coordinator.shard.groups
        coordinator.marker(7, 0, False)
        assert coordinator.committed() == -1
        assert coordinator.shard.groups == coordinator.loaded_again().groups == {}

    def test_reader_of_stable_offsets_has_to_wait(self, coordinator) -> None:
        coordinator.commit_in_transaction(10)
        unstable = f"error {ErrorCode.UNSTABLE_OFFSET_COMMIT}"
        assert coordinator.committed(stable=True) == unstable
        assert coordinator.committed(1, stable=True) == -1
        coordinator.marker(7, 0, True)
        assert coordinator.committed(stable=True) == 10

    def test_transactions_of_two_producers_end_on_their_own(self, coordinator) -> None:
        coordinator.commit_in_transaction(10, producer=7)
        coordinator.commit_in_transaction(20, producer=8)
        coordinator.marker(7, 0, True)
        assert (coordinator.committed(), coordinator.committed(stable=True)) == (10, "error 88")
        coordinator.marker(8, 0, False)
        assert coordinator.committed(stable=True) == 10

    def test_later_record_wins_whichever_marker_comes_first(self, coordinator) -> None:
        coordinator.commit_in_transaction(10)
        coordinator.commit(99)
        coordinator.marker(7, 0, True)
        assert coordinator.committed() == 99

    def test_marker_of_a_later_epoch_ends_the_transaction(self, coordinator) -> None:
        coordinator.commit_in_transaction(10, epoch=3)
        coordinator.marker(7, 4, False)
        assert coordinator.committed(stable=True) == -1

    def test_marker_of_an_earlier_epoch_is_too_late(self, coordinator) -> None:
        coordinator.commit_in_transaction(10, epoch=3)
        coordinator.marker(7, 2, True)
        assert coordinator.committed(stable=True) == f"error {ErrorCode.UNSTABLE_OFFSET_COMMIT}"

    def test_producer_of_an_earlier_epoch_is_fenced(self, coordinator) -> None:
        coordinator.commit_in_transaction(10, epoch=3)
        assert coordinator.commit_in_transaction(11, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_pending_offsets_survive_a_failover(self, coordinator) -> None:
        coordinator.commit_in_transaction(10)
        coordinator.fail_over()
        assert coordinator.committed(stable=True) == f"error {ErrorCode.UNSTABLE_OFFSET_COMMIT}"
        coordinator.marker(7, 0, True)
        assert coordinator.committed() == 10

    def test_consumer_of_the_transaction_is_fenced_like_any_other(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        assert coordinator.commit_in_transaction(1, generation_id=generation, member_id=member) == 0
        stale = coordinator.commit_in_transaction(1, generation_id=generation - 1, member_id=member)
        assert stale == ErrorCode.ILLEGAL_GENERATION
        assert coordinator.commit_in_transaction(1, generation_id=1, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
        assert coordinator.commit_in_transaction(1) == 0  # older producers do not say whom they commit for

    def test_unlike_a_plain_commit_it_may_come_while_the_leader_shares_out(self, coordinator) -> None:
        member, _ = coordinator.join_new()
        coordinator.pass_time(3000)
        assert coordinator.commit_in_transaction(1, generation_id=1, member_id=member) == 0

    def test_of_a_generation_of_a_group_that_is_not_there(self, coordinator) -> None:
        assert coordinator.commit_in_transaction(1, generation_id=1) == ErrorCode.ILLEGAL_GENERATION

    def test_of_a_topic_that_is_not_there(self, coordinator) -> None:
        assert coordinator.commit_in_transaction(1, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_version_6_names_topics_by_id(self, coordinator) -> None:
        assert coordinator.commit_in_transaction(7, version=6, topic="", topic_id=UUID(int=2)) == 0
        coordinator.marker(7, 0, True)
        assert coordinator.committed(topic="u") == 7

    def test_version_6_refuses_an_unknown_topic_id(self, coordinator) -> None:
        for topic_id in (UUID(int=99), UUID(int=0)):
            unknown = coordinator.commit_in_transaction(7, version=6, topic="", topic_id=topic_id)
            assert unknown == ErrorCode.UNKNOWN_TOPIC_ID
        beyond = coordinator.commit_in_transaction(7, version=6, topic="", topic_id=UUID(int=2), partition=99)
        assert beyond == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert coordinator.log == []

    @pytest.mark.parametrize(
        ("version", "stale", "missing"),
        [
            (5, ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
            (6, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND),
        ],
    )
    def test_version_6_reports_stale_epochs_and_missing_groups_as_they_are(
        self, coordinator, version: int, stale: ErrorCode, missing: ErrorCode
    ) -> None:
        epoch = coordinator.consumer_beat("m").member_epoch
        by = {"version": version, "topic_id": UUID(int=1), "member_id": "m"}
        assert coordinator.commit_in_transaction(1, group="n", generation_id=epoch, **by) == 0
        assert coordinator.commit_in_transaction(1, group="n", generation_id=epoch + 1, **by) == stale
        assert coordinator.commit_in_transaction(1, group="nobody", generation_id=1, **by) == missing

    def test_version_6_reports_a_stale_generation_of_a_classic_group_as_before(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        by = {"version": 6, "topic_id": UUID(int=1), "member_id": member}
        assert coordinator.commit_in_transaction(1, generation_id=generation, **by) == 0
        assert (
            coordinator.commit_in_transaction(1, generation_id=generation - 1, **by) == ErrorCode.ILLEGAL_GENERATION
        )


class TestOffsetDelete:
    def delete(self, coordinator, topic: str, *partitions: int, group: str = "g") -> list[int] | int:
        kind = m.OffsetDeleteRequest
        places = [kind.OffsetDeleteRequestPartition(partition_index=each) for each in partitions]
        topics = [kind.OffsetDeleteRequestTopic(name=topic, partitions=places)]
        reply = coordinator.ask(kind(group_id=group, topics=topics), 0)
        if reply.error_code:
            return int(reply.error_code)
        return [each.error_code for each in reply.topics[0].partitions]

    def test_forgets_what_nobody_reads(self, coordinator) -> None:
        (member,), generation = coordinator.stable(topics=("t",))
        coordinator.commit(1, member, generation, topic="t")
        coordinator.commit(2, member, generation, topic="u")
        assert self.delete(coordinator, "u", 0, 5) == [0, 0]
        assert self.delete(coordinator, "t", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
        assert (coordinator.committed(topic="u"), coordinator.committed(topic="t")) == (-1, 1)

    def test_writes_no_tombstone_for_what_is_not_there(self, coordinator) -> None:
        coordinator.commit(1)
        length = len(coordinator.log)
        assert self.delete(coordinator, "t", 3) == [0]
        assert len(coordinator.log) == length

    def test_ends_what_a_transaction_would_commit(self, coordinator) -> None:
        coordinator.commit_in_transaction(10)
        coordinator.commit(1, partition=1)
        assert self.delete(coordinator, "t", 0) == [0]
        coordinator.marker(7, 0, True)
        assert coordinator.committed() == -1

    def test_group_of_another_kind_must_be_empty(self, coordinator) -> None:
        (_member,), _ = coordinator.stable(protocol_type="connect")
        assert self.delete(coordinator, "t", 0) == ErrorCode.NON_EMPTY_GROUP

    def test_group_must_be_there(self, coordinator) -> None:
        assert self.delete(coordinator, "t", 0) == ErrorCode.GROUP_ID_NOT_FOUND

    def test_what_members_read_is_looked_at_once_for_all_topics(self, coordinator, watch_names: Callable) -> None:
        """Thousands of topics times what all members name took seconds."""
        for member in ("m1", "m2", "m3"):
            coordinator.consumer_beat(member, topics=["t", *(f"x{each}" for each in range(50))])
        walks = watch_names(coordinator.group("n"))
        kind = m.OffsetDeleteRequest
        topics = [
            kind.OffsetDeleteRequestTopic(
                name=name, partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in ("t", "u", *(f"y{each}" for each in range(200)))
        ]
        reply = coordinator.ask(kind(group_id="n", topics=topics), 0)
        codes = [each.partitions[0].error_code for each in reply.topics]
        assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] + [0] * 201
        assert walks() == 3

    def test_subscription_that_cannot_be_read_protects_everything(self, coordinator) -> None:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\x00")
        body = m.JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=[protocol]
        )
        request_id = coordinator.send(body, 0)
        coordinator.pass_time(3000)
        member = coordinator.answer(request_id).member_id
        coordinator.sync(member, 1, {})
        coordinator.commit(1, member, 1, topic="u")
        assert self.delete(coordinator, "u", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_refused_commit_answers_for_every_partition(coordinator: Callable) -> None:
    coordinator.stable()
    kind = m.OffsetCommitRequest
    places = [kind.OffsetCommitRequestPartition(partition_index=each, committed_metadata="") for each in (0, 3)]
    topics = [kind.OffsetCommitRequestTopic(name=name, partitions=places) for name in ("t", "u")]
    reply = coordinator.ask(kind(group_id="g", topics=topics), 9)
    found = [
        (topic.name, each.partition_index, each.error_code) for topic in reply.topics for each in topic.partitions
    ]
    assert found == [(name, each, ErrorCode.UNKNOWN_MEMBER_ID) for name in ("t", "u") for each in (0, 3)]
