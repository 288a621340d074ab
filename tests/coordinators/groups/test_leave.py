"""LeaveGroup and the end of sessions as a play."""

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.history import Why
from millpond.wire import messages as m


def test_last_one_to_leave_empties_the_group(coordinator) -> None:
    (member,), generation = coordinator.stable()
    assert coordinator.leave(member) == [0]
    assert (coordinator.group().state_name, coordinator.group().generation) == ("Empty", generation + 1)
    assert coordinator.loaded_again().groups["g"].state_name == "Empty"


def test_generations_go_on_rising_after_the_group_was_empty(coordinator) -> None:
    (member,), generation = coordinator.stable()
    coordinator.leave(member)
    _, next_generation = coordinator.stable()
    assert next_generation == generation + 2


def test_leaving_leads_to_a_rebalance_of_the_others(coordinator) -> None:
    (one, two), generation = coordinator.stable(2)
    assert coordinator.leave(one) == [0]
    assert coordinator.heartbeat(two, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    reply = coordinator.answer(coordinator.join(two))
    assert (reply.leader, reply.generation_id) == (two, generation + 1)


def test_several_leave_in_one_rebalance(coordinator) -> None:
    (one, two, three), generation = coordinator.stable(3)
    assert coordinator.leave(one, "stranger", two) == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    reply = coordinator.answer(coordinator.join(three))
    assert reply.generation_id == generation + 1
    assert [cause.why for cause in coordinator.shard.history("g")[-1].causes][:2] == [Why.LEFT, Why.LEFT]


def test_administrator_removes_an_instance_by_its_name(coordinator) -> None:
    request_id = coordinator.join(instance="a")
    coordinator.pass_time(3000)
    coordinator.settle([request_id])
    assert coordinator.leave(instances=["nobody"]) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert coordinator.leave(instances=["a"]) == [0]
    assert coordinator.group().state_name == "Empty"


def test_instance_leaves_only_by_its_current_id(coordinator) -> None:
    request_id = coordinator.join(instance="a")
    coordinator.pass_time(3000)
    coordinator.settle([request_id])
    identity = m.LeaveGroupRequest.MemberIdentity(member_id="a-old", group_instance_id="a")
    reply = coordinator.ask(m.LeaveGroupRequest(group_id="g", members=[identity]), 3)
    assert reply.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert reply.members[0].group_instance_id == "a"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_name_one_member(coordinator, version: int) -> None:
    (member,), _ = coordinator.stable()
    stranger = m.LeaveGroupRequest(group_id="g", member_id="stranger")
    assert coordinator.ask(stranger, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.ask(m.LeaveGroupRequest(group_id="g", member_id=member), version).error_code == 0


def test_of_a_group_that_is_not_there(coordinator) -> None:
    assert coordinator.leave("a", "b") == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    reply = coordinator.ask(m.LeaveGroupRequest(group_id="", members=[]), 5)
    assert reply.error_code == ErrorCode.INVALID_GROUP_ID


def test_one_who_waits_for_the_generation_is_answered_when_it_leaves(coordinator) -> None:
    (first,), _ = coordinator.stable()
    second, joining = coordinator.join_new()
    coordinator.leave(second)
    assert coordinator.answer(joining).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.answer(coordinator.join(first)).error_code == 0


def test_one_who_waits_for_its_part_is_answered_when_it_leaves(coordinator) -> None:
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    (_, _), (follower, _) = joins
    waiting = coordinator.sync(follower, 1)
    coordinator.leave(follower)
    assert coordinator.answer(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_id_is_given_back_without_a_rebalance(coordinator) -> None:
    (member,), generation = coordinator.stable()
    promised = coordinator.answer(coordinator.join()).member_id
    assert coordinator.leave(promised) == [0]
    assert coordinator.heartbeat(member, generation) == 0
    assert coordinator.answer(coordinator.join(promised)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_id_that_is_given_back_no_longer_holds_up_the_others(coordinator) -> None:
    (first,), _ = coordinator.stable()
    promised = coordinator.answer(coordinator.join()).member_id
    again = coordinator.join(first)
    assert coordinator.answer(again) is None
    coordinator.leave(promised)
    assert coordinator.answer(again).error_code == 0


def test_only_given_id_of_a_new_group_that_is_given_back_leaves_nothing(coordinator) -> None:
    promised = coordinator.answer(coordinator.join()).member_id
    coordinator.leave(promised)
    assert coordinator.shard.groups == {}


def test_silent_member_is_removed(coordinator) -> None:
    (one, two), generation = coordinator.stable(2, session_ms=20_000)
    coordinator.pass_time(15_000)
    assert coordinator.heartbeat(one, generation) == 0
    coordinator.pass_time(5000)
    assert coordinator.heartbeat(one, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(two, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    cause = coordinator.shard.history("g")[-1].causes[0]
    assert (cause.why, cause.member_id) == (Why.TIMED_OUT, two)


def test_all_silent_members_leave_an_empty_group_in_the_log(coordinator) -> None:
    coordinator.stable(3)
    coordinator.pass_time(30_000)
    assert coordinator.group().state_name == "Empty"
    assert coordinator.loaded_again().groups["g"].state_name == "Empty"


def test_sessions_restart_after_a_failover(coordinator) -> None:
    (member,), generation = coordinator.stable()
    coordinator.pass_time(9000)
    coordinator.fail_over()
    coordinator.pass_time(9000)
    assert coordinator.heartbeat(member, generation) == 0
    coordinator.pass_time(10_000)
    assert coordinator.group().state_name == "Empty"


def test_silent_instance_that_was_turned_back_while_it_waited_is_still_noticed(coordinator) -> None:
    request_ids = [coordinator.join(instance=each, session_ms=6000, rebalance_ms=20_000) for each in ("a", "b")]
    coordinator.pass_time(6000)
    leader, follower = (coordinator.answer(request_id).member_id for request_id in request_ids)
    waiting = coordinator.sync(follower, 1, instance="b")
    coordinator.pass_time(5000)
    coordinator.heartbeat(leader, 1, "a")
    coordinator.pass_time(5000)  # the follower's session has run out by now
    coordinator.join(leader, instance="a", topics=("u",), session_ms=6000)
    assert coordinator.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.pass_time(6000)
    assert list(coordinator.group().static_members) == ["a"]


def test_known_member_that_waits_for_a_generation_is_not_silent(coordinator) -> None:
    (one, two), _ = coordinator.stable(2, session_ms=20_000)
    waiting = coordinator.join(one, topics=("u",), session_ms=6000)
    for _ in range(3):
        coordinator.pass_time(15_000)
        assert coordinator.heartbeat(two, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.join(two, session_ms=20_000)
    assert coordinator.answer(waiting).error_code == 0
