"""SyncGroup and Heartbeat as a play."""

from collections.abc import Callable

import pytest

from millpond.base.errors import ErrorCode


@pytest.fixture
def joined(coordinator) -> tuple:
    """A leader and a follower that have joined generation 1."""
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    return coordinator, joins[0][0], joins[1][0]


def test_everybody_waits_for_the_leader(joined: tuple, assigned: Callable) -> None:
    coordinator, leader, follower = joined
    waiting = coordinator.sync(follower, 1)
    assert coordinator.answer(waiting) is None
    leading = coordinator.sync(leader, 1, {leader: assigned(("t", 0)), follower: assigned(("t", 1))})
    assert coordinator.answer(leading).assignment == assigned(("t", 0))
    assert coordinator.answer(waiting).assignment == assigned(("t", 1))
    assert (coordinator.answer(waiting).protocol_type, coordinator.answer(waiting).protocol_name) == (
        "consumer",
        "range",
    )
    assert coordinator.group().state_name == "Stable"


def test_late_follower_gets_its_part_at_once(joined: tuple, assigned: Callable) -> None:
    coordinator, leader, follower = joined
    coordinator.sync(leader, 1, {follower: assigned(("t", 1))})
    assert coordinator.answer(coordinator.sync(follower, 1)).assignment == assigned(("t", 1))
    assert coordinator.answer(coordinator.sync(follower, 1)).assignment == assigned(("t", 1))


def test_member_that_the_leader_forgot_gets_nothing_and_strangers_are_passed_over(
    joined: tuple, assigned: Callable
) -> None:
    coordinator, leader, follower = joined
    coordinator.sync(leader, 1, {leader: assigned(("t", 0)), "stranger": assigned(("t", 1))})
    assert coordinator.answer(coordinator.sync(follower, 1)).assignment == b""
    assert list(coordinator.group().members) == [leader, follower]


def test_assignment_survives_a_failover(joined: tuple, assigned: Callable) -> None:
    coordinator, leader, follower = joined
    coordinator.sync(leader, 1, {leader: assigned(("t", 0)), follower: assigned(("t", 1))})
    coordinator.fail_over()
    assert coordinator.answer(coordinator.sync(follower, 1)).assignment == assigned(("t", 1))
    assert coordinator.heartbeat(leader, 1) == 0


def test_generation_without_an_assignment_does_not_survive_a_failover(joined: tuple) -> None:
    coordinator, leader, _ = joined
    coordinator.fail_over()
    assert coordinator.answer(coordinator.sync(leader, 1, {})).error_code == ErrorCode.UNKNOWN_MEMBER_ID


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
    coordinator, leader, _ = joined
    assert coordinator.answer(coordinator.sync(leader, generation, {}, **more)).error_code == code


def test_stranger_is_turned_away(joined: tuple) -> None:
    coordinator, _, _ = joined
    assert coordinator.answer(coordinator.sync("stranger", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_during_the_next_rebalance_there_is_nothing_to_fetch(joined: tuple) -> None:
    coordinator, leader, follower = joined
    coordinator.sync(leader, 1, {})
    coordinator.join_new()
    assert coordinator.answer(coordinator.sync(follower, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_that_is_sent_twice_is_answered_twice(joined: tuple, assigned: Callable) -> None:
    coordinator, leader, follower = joined
    one = coordinator.sync(follower, 1)
    two = coordinator.sync(follower, 1)
    assert coordinator.answer(one).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.sync(leader, 1, {follower: assigned(("t", 3))})
    assert coordinator.answer(two).assignment == assigned(("t", 3))


def test_session_restarts_with_the_assignment(joined: tuple) -> None:
    coordinator, leader, follower = joined
    coordinator.sync(follower, 1)
    for _ in range(3):
        coordinator.pass_time(9000)
        assert coordinator.heartbeat(leader, 1) == 0
    # The follower's session of 10 s has run out while it was waiting; it is still there.
    coordinator.sync(leader, 1, {})
    coordinator.pass_time(9999)
    assert coordinator.heartbeat(follower, 1) == 0


class TestHeartbeat:
    def test_keeps_the_session_alive(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        for _ in range(5):
            coordinator.pass_time(9999)
            assert coordinator.heartbeat(member, generation) == 0
        coordinator.pass_time(10_000)
        assert coordinator.heartbeat(member, generation) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_is_welcome_while_the_leader_shares_out(self, joined: tuple) -> None:
        coordinator, leader, _ = joined
        assert coordinator.heartbeat(leader, 1) == 0

    def test_tells_of_a_rebalance_and_still_counts(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        coordinator.join_new()
        for _ in range(3):
            coordinator.pass_time(9000)
            assert coordinator.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_of_another_generation_or_a_stranger(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        assert coordinator.heartbeat(member, generation + 1) == ErrorCode.ILLEGAL_GENERATION
        assert coordinator.heartbeat("stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
        assert coordinator.heartbeat(member, generation, "i") == ErrorCode.UNKNOWN_MEMBER_ID

    def test_of_nobody(self, coordinator) -> None:
        assert coordinator.heartbeat("m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
