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
    def test_a_silent_member_is_removed(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        pond.join("m2", "a")
        pond.pass_time(30_000)
        pond.beat("m2", 2)
        assert pond.group.next_deadline_ms() == 46_000
        pond.pass_time(14_999)
        assert set(pond.group.state.members) == {"m1", "m2"}
        pond.pass_time(1)
        assert set(pond.group.state.members) == {"m2"}
        assert pond.group.state.epoch == 3
        assert in_reply(pond.beat("m2", 2)) == pond.parts(a=range(4))

    def test_many_are_removed_in_one_epoch(self, pond: Any) -> None:
        for number in range(4):
            pond.join(f"m{number}", "a")
        pond.pass_time(45_000)
        assert pond.group.is_empty
        assert pond.group.state.epoch == 5

    def test_a_crowd_is_removed_in_several_steps_and_requests_come_between(self, pond: Any) -> None:
        crowd = 2 * DUE_MAX + 1
        for number in range(crowd):
            pond.join(f"m{number}", "a")
        pond.now_ms += 45_000
        for left in (DUE_MAX + 1, 1, 0):
            assert pond.group.next_deadline_ms() <= pond.now_ms
            pond.run(pond.group.on_time(pond.now_ms))
            assert pond.group.member_count == left
        assert pond.group.next_deadline_ms() is None
        assert pond.group.state.epoch == crowd + 3

    def test_one_that_does_not_let_go_is_removed(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        pond.join("m2", "a")
        pond.beat("m1", 1)
        for _ in range(3):
            pond.pass_time(19_000)
            pond.beat("m1", 1)
            pond.beat("m2", 2)
        assert "m1" in pond.group.state.members
        pond.pass_time(3_000)
        assert set(pond.group.state.members) == {"m2"}
        assert in_reply(pond.beat("m2", 2)) == pond.parts(a=range(4))
        assert pond.beat("m1", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_one_that_lets_go_in_time_stays(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        pond.join("m2", "a")
        kept = in_reply(pond.beat("m1", 1))
        pond.pass_time(40_000)
        pond.beat("m1", 1, owned=kept)
        pond.pass_time(40_000)
        pond.beat("m1", 2)
        assert "m1" in pond.group.state.members

    def test_with_no_member_there_is_nothing_to_wait_for(self, pond: Any) -> None:
        assert pond.group.next_deadline_ms() is None
        assert not pond.group.on_time(10**9).records


class TestTopics:
    def test_growth_and_loss_turn_the_epoch(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a", "later")
        pond.grow("a", 5)
        pond.topics_changed()
        response = pond.beat("m1", 1)
        assert (response.member_epoch, in_reply(response)) == (2, pond.parts(a=range(5)))
        pond.create("later", 1)
        pond.topics_changed()
        assert in_reply(pond.beat("m1", 2)) == pond.parts(a=range(5), later=[0])
        later = pond.parts(later=[0])
        pond.delete("a")
        pond.topics_changed()
        assert in_reply(pond.beat("m1", 3)) == later
        assert pond.beat("m1", 3, owned=later).member_epoch == 4

    def test_others_topics_are_no_concern(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.grow("b", 9)
        assert not pond.topics_changed().records

    def test_an_empty_group_does_not_care(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.leave("m1")
        pond.grow("a", 9)
        assert not pond.topics_changed().records


class TestLoading:
    def test_sessions_begin_anew(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.pass_time(40_000)
        pond.reload()
        pond.pass_time(44_999)
        assert "m1" in pond.group.state.members
        pond.pass_time(1)
        assert pond.group.is_empty

    def test_so_does_the_time_to_let_go(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.join("m2", "a")
        pond.beat("m1", 1)
        pond.reload()
        for _ in range(2):
            pond.pass_time(30_000)
            pond.beat("m1", 1)
        assert "m1" not in pond.group.state.members

    def test_topics_that_changed_meanwhile_are_noticed(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        pond.grow("a", 6)
        pond.reload()
        assert pond.group.state_name == "Assigning"
        assert in_reply(pond.beat("m1", 1)) == pond.parts(a=range(6))

    def test_the_member_does_not_notice(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        pond.reload()
        response = pond.beat("m1", 1)
        assert (response.error_code, response.member_epoch, in_reply(response)) == (0, 1, None)


class TestOffsets:
    @staticmethod
    def commit(pond: Any, member_id: str, epoch: int, *, version: int = 9, transactional: bool = False) -> ErrorCode:
        try:
            pond.group.check_commit(member_id, None, epoch, version=version, transactional=transactional)
        except Refused as why:
            return why.code
        return ErrorCode.NONE

    def test_members_commit_in_their_epoch(self, pond: Any) -> None:
        pond.join("m1", "a")
        assert self.commit(pond, "m1", 1) is ErrorCode.NONE
        assert self.commit(pond, "m1", 0) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(pond, "m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(pond, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert self.commit(pond, "", -1, transactional=True) is ErrorCode.NONE
        assert self.commit(pond, "m1", 0, transactional=True) is ErrorCode.STALE_MEMBER_EPOCH
        assert self.commit(pond, "m1", 1, version=8) is ErrorCode.UNSUPPORTED_VERSION
        assert self.commit(pond, "m1", 1, version=3, transactional=True) is ErrorCode.NONE

    def test_an_empty_group_is_anybodys(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.leave("m1")
        assert self.commit(pond, "", -1) is ErrorCode.NONE
        assert self.commit(pond, "m1", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_fetching(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.group.check_fetch(None, -1)
        pond.group.check_fetch("m1", 1)
        with pytest.raises(Refused) as refused:
            pond.group.check_fetch("m1", 2)
        assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH
        with pytest.raises(Refused) as refused:
            pond.group.check_fetch("m2", 2)
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID

    def test_what_is_read_and_for_how_long_it_is_kept(self, pond: Any) -> None:
        pond.join("m1", "b", subscribed_topic_names=["b"], subscribed_topic_regex="a")
        assert pond.group.subscribed_among(["a", "b", "c"]) == {"a", "b"}
        committed = Committed(offset=1, leader_epoch=0, metadata="", since_ms=77, keep_ms=-1, record_offset=0)
        assert pond.group.retained_since_ms(committed) == 77


def test_deleting_a_group(pond: Any) -> None:
    assert pond.group.tombstones() == []
    pond.join("m1", subscribed_topic_regex="a")
    with pytest.raises(Refused):
        pond.group.check_delete()
    pond.leave("m1")
    pond.group.check_delete()
    tombstones = pond.group.tombstones()
    assert {record.key for record in tombstones} <= {record.key for record in pond.log}
    for record in tombstones:
        assert record.value is None
    pond.log += tombstones
    pond.reload()
    assert pond.group.state == GroupState()
    assert not pond.group.exists


def test_a_refused_join_leaves_no_trace(make_pond: Callable[..., Any]) -> None:
    pond = make_pond(a=1)
    assert pond.join("m1", "a", server_assignor="magic").error_code
    assert not pond.group.exists
    assert pond.group.next_deadline_ms() is None
    assert not pond.group.history.rebalances
