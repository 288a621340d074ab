"""Time, topics, loading, and what the shard of all groups asks of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.consumer.state import GroupState
from millpond.coordinators.groups.consumer.watch import DUE_MAX
from millpond.coordinators.groups.offsets import Committed


class TestTime:
    def test_a_silent_member_is_removed(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        harness.join("m2", "a")
        harness.pass_time(30_000)
        harness.beat("m2", 2)
        assert harness.group.next_deadline_ms() == 46_000
        harness.pass_time(14_999)
        assert set(harness.group.state.members) == {"m1", "m2"}
        harness.pass_time(1)
        assert set(harness.group.state.members) == {"m2"}
        assert harness.group.state.epoch == 3
        assert in_reply(harness.beat("m2", 2)) == harness.parts(a=range(4))

    def test_many_are_removed_in_one_epoch(self, harness: Any) -> None:
        for number in range(4):
            harness.join(f"m{number}", "a")
        harness.pass_time(45_000)
        assert harness.group.is_empty
        assert harness.group.state.epoch == 5

    def test_a_crowd_is_removed_in_several_steps_and_requests_come_between(self, harness: Any) -> None:
        crowd = 2 * DUE_MAX + 1
        for number in range(crowd):
            harness.join(f"m{number}", "a")
        harness.now_ms += 45_000
        for left in (DUE_MAX + 1, 1, 0):
            assert harness.group.next_deadline_ms() <= harness.now_ms
            harness.run(harness.group.on_timer(harness.now_ms))
            assert harness.group.member_count == left
        assert harness.group.next_deadline_ms() is None
        assert harness.group.state.epoch == crowd + 3

    def test_one_that_does_not_let_go_is_removed(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        harness.join("m2", "a")
        harness.beat("m1", 1)
        for _ in range(3):
            harness.pass_time(19_000)
            harness.beat("m1", 1)
            harness.beat("m2", 2)
        assert "m1" in harness.group.state.members
        harness.pass_time(3_000)
        assert set(harness.group.state.members) == {"m2"}
        assert in_reply(harness.beat("m2", 2)) == harness.parts(a=range(4))
        assert harness.beat("m1", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_one_that_lets_go_in_time_stays(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        harness.join("m2", "a")
        kept = in_reply(harness.beat("m1", 1))
        harness.pass_time(40_000)
        harness.beat("m1", 1, owned=kept)
        harness.pass_time(40_000)
        harness.beat("m1", 2)
        assert "m1" in harness.group.state.members

    def test_with_no_member_there_is_nothing_to_wait_for(self, harness: Any) -> None:
        assert harness.group.next_deadline_ms() is None
        assert not harness.group.on_timer(10**9).records


class TestTopics:
    def test_growth_and_loss_turn_the_epoch(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a", "later")
        harness.grow("a", 5)
        harness.topics_changed()
        response = harness.beat("m1", 1)
        assert (response.member_epoch, in_reply(response)) == (2, harness.parts(a=range(5)))
        harness.create("later", 1)
        harness.topics_changed()
        assert in_reply(harness.beat("m1", 2)) == harness.parts(a=range(5), later=[0])
        later = harness.parts(later=[0])
        harness.delete("a")
        harness.topics_changed()
        assert in_reply(harness.beat("m1", 3)) == later
        assert harness.beat("m1", 3, owned=later).member_epoch == 4

    def test_others_topics_are_no_concern(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.grow("b", 9)
        assert not harness.topics_changed().records

    def test_an_empty_group_does_not_care(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.leave("m1")
        harness.grow("a", 9)
        assert not harness.topics_changed().records


class TestLoading:
    def test_sessions_begin_anew(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.pass_time(40_000)
        harness.reload()
        harness.pass_time(44_999)
        assert "m1" in harness.group.state.members
        harness.pass_time(1)
        assert harness.group.is_empty

    def test_so_does_the_time_to_let_go(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.join("m2", "a")
        harness.beat("m1", 1)
        harness.reload()
        for _ in range(2):
            harness.pass_time(30_000)
            harness.beat("m1", 1)
        assert "m1" not in harness.group.state.members

    def test_topics_that_changed_meanwhile_are_noticed(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        harness.grow("a", 6)
        harness.reload()
        assert harness.group.state_name == "Assigning"
        assert in_reply(harness.beat("m1", 1)) == harness.parts(a=range(6))

    def test_the_member_does_not_notice(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        harness.reload()
        response = harness.beat("m1", 1)
        assert (response.error_code, response.member_epoch, in_reply(response)) == (0, 1, None)


class TestOffsets:
    @staticmethod
    def commit(
        harness: Any, member_id: str, epoch: int, *, version: int = 9, transactional: bool = False
    ) -> ErrorCode:
        try:
            harness.group.check_commit(member_id, None, epoch, version=version, transactional=transactional)
        except Refused as why:
            return why.code
        return ErrorCode.NONE

    def test_members_commit_in_their_epoch(self, harness: Any) -> None:
        harness.join("m1", "a")
        assert self.commit(harness, "m1", 1) is ErrorCode.NONE
        assert self.commit(harness, "m1", 0) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(harness, "m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(harness, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(harness, "", -1, transactional=True) is ErrorCode.NONE
        assert self.commit(harness, "m1", 0, transactional=True) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(harness, "m1", 1, version=8) is ErrorCode.UNSUPPORTED_VERSION
        assert self.commit(harness, "m1", 1, version=3, transactional=True) is ErrorCode.NONE

    def test_an_empty_group_is_anybodys(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.leave("m1")
        assert self.commit(harness, "", -1) is ErrorCode.NONE
        assert self.commit(harness, "m1", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_fetching(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.group.check_fetch(None, -1)
        harness.group.check_fetch("m1", 1)
        with pytest.raises(Refused) as refused:
            harness.group.check_fetch("m1", 2)
        assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH
        with pytest.raises(Refused) as refused:
            harness.group.check_fetch("m2", 2)
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_what_is_read_and_for_how_long_it_is_kept(self, harness: Any) -> None:
        harness.join("m1", "b", subscribed_topic_names=["b"], subscribed_topic_regex="a")
        assert harness.group.subscribed_among(["a", "b", "c"]) == {"a", "b"}
        committed = Committed(offset=1, leader_epoch=0, metadata="", since_ms=77, keep_ms=-1, record_offset=0)
        assert harness.group.retained_since_ms(committed) == 77


def test_deleting_a_group(harness: Any) -> None:
    assert harness.group.tombstones() == []
    harness.join("m1", subscribed_topic_regex="a")
    with pytest.raises(Refused):
        harness.group.check_delete()
    harness.leave("m1")
    harness.group.check_delete()
    tombstones = harness.group.tombstones()
    assert {record.key for record in tombstones} <= {record.key for record in harness.log}
    for record in tombstones:
        assert record.value is None
    harness.log += tombstones
    harness.reload()
    assert harness.group.state == GroupState()
    assert not harness.group.exists


def test_a_refused_join_leaves_no_trace(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(a=1)
    assert harness.join("m1", "a", server_assignor="magic").error_code
    assert not harness.group.exists
    assert harness.group.next_deadline_ms() is None
    assert not harness.group.history.rebalances
