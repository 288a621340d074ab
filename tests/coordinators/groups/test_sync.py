"""SyncGroup and Heartbeat as a play."""

from collections.abc import Callable

import pytest

from millpond.base.errors import ErrorCode


@pytest.fixture
def joined(stage) -> tuple:
    """A leader and a follower that have joined generation 1."""
    joins = [stage.join_new() for _ in range(2)]
    stage.pass_time(6000)
    return stage, joins[0][0], joins[1][0]


def test_everybody_waits_for_the_leader(joined: tuple, assigned: Callable) -> None:
    stage, leader, follower = joined
    waiting = stage.sync(follower, 1)
    assert stage.answer(waiting) is None
    leading = stage.sync(leader, 1, {leader: assigned(("t", 0)), follower: assigned(("t", 1))})
    assert stage.answer(leading).assignment == assigned(("t", 0))
    assert stage.answer(waiting).assignment == assigned(("t", 1))
    assert (stage.answer(waiting).protocol_type, stage.answer(waiting).protocol_name) == ("consumer", "range")
    assert stage.group().state_name == "Stable"


def test_late_follower_gets_its_part_at_once(joined: tuple, assigned: Callable) -> None:
    stage, leader, follower = joined
    stage.sync(leader, 1, {follower: assigned(("t", 1))})
    assert stage.answer(stage.sync(follower, 1)).assignment == assigned(("t", 1))
    assert stage.answer(stage.sync(follower, 1)).assignment == assigned(("t", 1))


def test_member_that_the_leader_forgot_gets_nothing_and_strangers_are_passed_over(
    joined: tuple, assigned: Callable
) -> None:
    stage, leader, follower = joined
    stage.sync(leader, 1, {leader: assigned(("t", 0)), "stranger": assigned(("t", 1))})
    assert stage.answer(stage.sync(follower, 1)).assignment == b""
    assert list(stage.group().members) == [leader, follower]


def test_assignment_survives_a_failover(joined: tuple, assigned: Callable) -> None:
    stage, leader, follower = joined
    stage.sync(leader, 1, {leader: assigned(("t", 0)), follower: assigned(("t", 1))})
    stage.fail_over()
    assert stage.answer(stage.sync(follower, 1)).assignment == assigned(("t", 1))
    assert stage.heartbeat(leader, 1) == 0


def test_generation_without_an_assignment_does_not_survive_a_failover(joined: tuple) -> None:
    stage, leader, _ = joined
    stage.fail_over()
    assert stage.answer(stage.sync(leader, 1, {})).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("generation", "more", "code"),
    [
        (0, {}, ErrorCode.ILLEGAL_GENERATION),
        (2, {}, ErrorCode.ILLEGAL_GENERATION),
        (1, {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (1, {"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (1, {"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        (1, {"group": ""}, ErrorCode.INVALID_GROUP_ID),
        (1, {"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_is_turned_away(joined: tuple, generation: int, more: dict, code: int) -> None:
    stage, leader, _ = joined
    assert stage.answer(stage.sync(leader, generation, {}, **more)).error_code == code


def test_stranger_is_turned_away(joined: tuple) -> None:
    stage, _, _ = joined
    assert stage.answer(stage.sync("stranger", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_during_the_next_rebalance_there_is_nothing_to_fetch(joined: tuple) -> None:
    stage, leader, follower = joined
    stage.sync(leader, 1, {})
    stage.join_new()
    assert stage.answer(stage.sync(follower, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_that_is_sent_twice_is_answered_twice(joined: tuple, assigned: Callable) -> None:
    stage, leader, follower = joined
    one = stage.sync(follower, 1)
    two = stage.sync(follower, 1)
    assert stage.answer(one).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    stage.sync(leader, 1, {follower: assigned(("t", 3))})
    assert stage.answer(two).assignment == assigned(("t", 3))


def test_session_runs_anew_when_the_assignment_comes(joined: tuple) -> None:
    stage, leader, follower = joined
    stage.sync(follower, 1)
    for _ in range(3):
        stage.pass_time(9000)
        assert stage.heartbeat(leader, 1) == 0
    # The follower's session of 10 s has run out while it was waiting; it is still there.
    stage.sync(leader, 1, {})
    stage.pass_time(9999)
    assert stage.heartbeat(follower, 1) == 0


class TestHeartbeat:
    def test_keeps_the_session_alive(self, stage) -> None:
        (member,), generation = stage.stable()
        for _ in range(5):
            stage.pass_time(9999)
            assert stage.heartbeat(member, generation) == 0
        stage.pass_time(10_000)
        assert stage.heartbeat(member, generation) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_is_welcome_while_the_leader_shares_out(self, joined: tuple) -> None:
        stage, leader, _ = joined
        assert stage.heartbeat(leader, 1) == 0

    def test_tells_of_a_rebalance_and_still_counts(self, stage) -> None:
        (member,), generation = stage.stable()
        stage.join_new()
        for _ in range(3):
            stage.pass_time(9000)
            assert stage.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_of_another_generation_or_a_stranger(self, stage) -> None:
        (member,), generation = stage.stable()
        assert stage.heartbeat(member, generation + 1) == ErrorCode.ILLEGAL_GENERATION
        assert stage.heartbeat("stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
        assert stage.heartbeat(member, generation, "i") == ErrorCode.UNKNOWN_MEMBER_ID

    def test_of_nobody(self, stage) -> None:
        assert stage.heartbeat("m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
