"""Classic members in a group of the new protocol: it speaks to them as they expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.wire import messages as m


@pytest.fixture
def mixed(harness: Any) -> Any:
    """A pond with one member of the new protocol, so that the group stays one of it."""
    harness.join("new", "a")
    return harness


def settle_new(harness: Any, in_reply: Any) -> None:
    """Let the new member give up what it has to."""
    member = harness.group.state.members["new"]
    response = harness.beat("new", member.epoch)
    kept = in_reply(response)
    if kept is not None:
        harness.beat("new", response.member_epoch, owned=kept)


def test_a_classic_member_joins_waits_and_gets_its_share(
    mixed: Any, in_reply: Any, make_classic: Callable[..., Any]
) -> None:
    classic = make_classic(mixed, "a")
    response = classic.join()
    assert (response.generation_id, response.leader, response.members) == (2, "", [])
    assert (response.protocol_type, response.protocol_name) == ("consumer", "cooperative")
    assert classic.id.startswith("c-")
    assert classic.sync().error_code == 0
    assert classic.owned == frozenset(), "the other one still has everything"
    assert classic.beat() is ErrorCode.NONE
    settle_new(mixed, in_reply)
    assert classic.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "now it is free"
    classic.join()
    assert classic.sync().error_code == 0
    assert len(classic.owned) == 2
    assert classic.beat() is ErrorCode.NONE
    assert mixed.group.state_name == "Stable"
    assert [member.member_type for member in mixed.group.describe().members] == [1, 0]


def test_it_gives_up_what_others_are_to_have(mixed: Any, in_reply: Any, make_classic: Callable[..., Any]) -> None:
    classic = make_classic(mixed, "a")
    classic.join()
    classic.sync()
    settle_new(mixed, in_reply)
    classic.join()
    classic.sync()
    before = classic.owned
    mixed.join("newer", "a")
    mixed.join("newest", "a")
    assert classic.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert classic.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS, "it must join first"
    classic.join()
    assert classic.sync().error_code == 0
    assert len(classic.owned) == 1
    assert classic.owned < before
    moving = before - classic.owned
    assert set(mixed.group.state.owners) >= moving, "until it has joined without them they are its own"
    assert classic.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    classic.join()
    assert not moving & set(mixed.group.state.owners)
    assert classic.generation == 4
    assert classic.sync().error_code == 0
    assert classic.beat() is ErrorCode.NONE


def test_an_eager_member_gives_up_everything_by_joining(
    mixed: Any, in_reply: Any, make_classic: Callable[..., Any]
) -> None:
    classic = make_classic(mixed, "a")
    classic.join()
    settle_new(mixed, in_reply)
    classic.join()
    classic.sync()
    mixed.join("newer", "a")
    mixed.join("newest", "a")
    classic.owned = frozenset()
    assert classic.join().generation_id == 4
    classic.sync()
    assert len(classic.owned) == 1


def test_who_is_turned_away(mixed: Any, make_classic: Callable[..., Any]) -> None:
    classic = make_classic(mixed, "a")
    classic.join()
    assert classic.beat(generation_id=1) is ErrorCode.ILLEGAL_GENERATION
    assert classic.beat(member_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.beat(member_id="new", generation_id=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.sync(generation_id=7).error_code == ErrorCode.ILLEGAL_GENERATION
    assert classic.sync(protocol_name="other").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert classic.sync(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = make_classic(mixed, "a", assignors="sticky")
    assert other.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    both = make_classic(mixed, "a", assignors="sticky,cooperative")
    assert both.join().error_code == 0
    assert make_classic(mixed, "a").join(protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broken = [m.JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative", metadata=b"\0\0\x7f")]
    assert make_classic(mixed, "a").join(protocols=broken).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_id_comes_first_except_in_old_versions(mixed: Any, make_classic: Callable[..., Any]) -> None:
    classic = make_classic(mixed, "a")
    assert classic.join(version=3).error_code == 0
    body = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative", metadata=classic.subscription())],
    )
    response = mixed.ask(body, 4)
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id
    assert len(mixed.group.state.members) == 2


def test_a_full_group(make_harness: Callable[..., Any], make_classic: Callable[..., Any]) -> None:
    harness = make_harness(ConsumerGroupSettings(max_size=1), a=1)
    harness.join("new", "a")
    assert make_classic(harness, "a").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_classic_members_together_may_say_only_so_much(
    make_harness: Callable[..., Any], make_classic: Callable[..., Any]
) -> None:
    """The group may become theirs alone, and then all of it is one record."""
    harness = make_harness(ConsumerGroupSettings(classic_max_bytes=5000), a=1)
    harness.join("new", "a")
    large = make_classic(harness, "a", "x" * 2000)
    assert large.join().error_code == 0
    assert make_classic(harness, "a", "x" * 3000).join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert make_classic(harness, "a", "x" * 1000).join().error_code == 0
    large.topics = ("a", "y" * 4000)
    assert large.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    large.topics = ("a", "y" * 2100)
    assert large.join().error_code == 0
    assert harness.join("newer", "a", *("x" * 200 + str(each) for each in range(50))).error_code == 0


class TestTime:
    def test_its_own_session_timeout_counts(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a")
        classic.join()
        classic.sync()
        mixed.pass_time(9_000)
        assert classic.beat() is ErrorCode.NONE
        mixed.pass_time(10_000)
        assert set(mixed.group.state.members) == {"new"}

    def test_one_that_does_not_fetch_its_assignment(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a")
        classic.join()
        for _ in range(7):
            mixed.pass_time(9_000)
            mixed.beat("new", 1)
            classic.beat()
        assert set(mixed.group.state.members) == {"new"}

    def test_one_that_does_not_join_again(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a")
        classic.join()
        classic.sync()
        mixed.join("newer", "a")
        for _ in range(7):
            mixed.beat("new", 1)
            mixed.beat("newer", 3)
            classic.beat()
            mixed.pass_time(9_000)
        assert set(mixed.group.state.members) == {"newer"}, "nor has the new one given up what it was told to"

    def test_sessions_after_loading(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a")
        classic.join()
        classic.sync()
        mixed.reload()
        mixed.pass_time(10_000)
        assert set(mixed.group.state.members) == {"new"}


class TestLeaving:
    def test_it_leaves(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a")
        classic.join()
        (answer,) = classic.leave(reason="done").members
        assert (answer.member_id, answer.error_code) == (classic.id, 0)
        assert set(mixed.group.state.members) == {"new"}
        (answer,) = classic.leave().members
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_by_an_old_version(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a")
        classic.join()
        assert classic.leave(version=1).error_code == 0
        assert classic.leave(version=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_by_its_instance_alone(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a", instance_id="i")
        classic.join()
        (answer,) = classic.leave(member_id="").members
        assert answer.error_code == 0
        assert set(mixed.group.state.members) == {"new"}

    def test_members_of_the_new_protocol_leave_otherwise(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        (answer,) = make_classic(mixed, "a").leave(member_id="new").members
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


class TestStaticMembers:
    def test_back_under_a_new_id(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a", instance_id="i")
        classic.join()
        first = classic.id
        classic.id = ""
        response = classic.join()
        assert response.error_code == 0
        assert classic.id != first
        assert set(mixed.group.state.members) == {"new", classic.id}
        assert mixed.group.state.epoch == 2
        assert classic.beat(member_id=first) is ErrorCode.FENCED_INSTANCE_ID
        classic.id = first
        assert classic.join().error_code == ErrorCode.FENCED_INSTANCE_ID

    def test_an_id_that_was_never_given(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a", instance_id="i")
        classic.id = "made-up"
        assert classic.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_it_may_come_back_with_the_new_protocol(self, mixed: Any, make_classic: Callable[..., Any]) -> None:
        classic = make_classic(mixed, "a", instance_id="i")
        classic.join()
        response = mixed.join("upgraded", "a", instance_id="i")
        assert response.error_code == 0
        assert set(mixed.group.state.members) == {"new", "upgraded"}
        assert not mixed.group.state.members["upgraded"].is_classic


def test_commits_of_classic_members_are_checked_as_they_expect(mixed: Any, make_classic: Callable[..., Any]) -> None:
    classic = make_classic(mixed, "a")
    classic.join()
    mixed.group.check_commit(classic.id, None, classic.generation, version=5, transactional=False)
    with pytest.raises(Exception, match="epoch is 2") as refused:
        mixed.group.check_commit(classic.id, None, 1, version=5, transactional=False)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION  # type: ignore[attr-defined]


def test_one_that_was_removed_must_not_come_back_with_partitions(
    mixed: Any, in_reply: Any, make_classic: Callable[..., Any]
) -> None:
    classic = make_classic(mixed, "a")
    classic.join()
    settle_new(mixed, in_reply)
    classic.join()
    classic.sync()
    assert classic.owned
    mixed.pass_time(10_000)
    assert classic.join().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    classic.owned = frozenset()
    assert classic.join().error_code == 0


def beat_for_a_minute(harness: Any, beat: Callable[[], Any]) -> None:
    for _ in range(8):
        harness.pass_time(9_000)
        beat()


def test_a_member_that_changes_to_the_new_protocol_is_no_longer_waited_for(
    mixed: Any, make_classic: Callable[..., Any]
) -> None:
    classic = make_classic(mixed, "a")
    classic.join()
    epoch = mixed.join(classic.id, "a").member_epoch
    beat_for_a_minute(mixed, lambda: mixed.beat(classic.id, mixed.group.state.members[classic.id].epoch))
    assert classic.id in mixed.group.state.members, "nobody expects it to sync"
    assert mixed.group.state.members[classic.id].epoch >= epoch


def test_a_member_that_changes_to_the_classic_protocol_is_no_longer_waited_for(
    mixed: Any, make_classic: Callable[..., Any]
) -> None:
    mixed.join("other", "a")
    mixed.beat("new", 1)
    assert mixed.group.state.members["new"].current.revoking
    classic = make_classic(mixed, "a")
    classic.id = "new"
    classic.join()
    classic.sync()

    def beat() -> None:
        mixed.beat("other", mixed.group.state.members["other"].epoch)
        classic.beat()

    beat_for_a_minute(mixed, beat)
    assert "new" in mixed.group.state.members, "it let go when it joined"
