"""LeaveGroup and the end of sessions as a play."""

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.history import Why
from millpond.wire import messages as m


def test_last_one_to_leave_empties_the_group(stage) -> None:
    (member,), generation = stage.stable()
    assert stage.leave(member) == [0]
    assert (stage.group().state_name, stage.group().generation) == ("Empty", generation + 1)
    assert stage.loaded_again().groups["g"].state_name == "Empty"


def test_generations_go_on_rising_after_the_group_was_empty(stage) -> None:
    (member,), generation = stage.stable()
    stage.leave(member)
    _, next_generation = stage.stable()
    assert next_generation == generation + 2


def test_leaving_leads_to_a_rebalance_of_the_others(stage) -> None:
    (one, two), generation = stage.stable(2)
    assert stage.leave(one) == [0]
    assert stage.heartbeat(two, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    reply = stage.answer(stage.join(two))
    assert (reply.leader, reply.generation_id) == (two, generation + 1)


def test_several_leave_in_one_rebalance(stage) -> None:
    (one, two, three), generation = stage.stable(3)
    assert stage.leave(one, "stranger", two) == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    reply = stage.answer(stage.join(three))
    assert reply.generation_id == generation + 1
    assert [cause.why for cause in stage.shard.history("g")[-1].causes][:2] == [Why.LEFT, Why.LEFT]


def test_administrator_removes_an_instance_by_its_name(stage) -> None:
    token = stage.join(instance="a")
    stage.pass_time(3000)
    stage.settle([token])
    assert stage.leave(instances=["nobody"]) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert stage.leave(instances=["a"]) == [0]
    assert stage.group().state_name == "Empty"


def test_instance_leaves_only_by_its_current_id(stage) -> None:
    token = stage.join(instance="a")
    stage.pass_time(3000)
    stage.settle([token])
    identity = m.LeaveGroupRequest.MemberIdentity(member_id="a-old", group_instance_id="a")
    reply = stage.ask(m.LeaveGroupRequest(group_id="g", members=[identity]), 3)
    assert reply.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert reply.members[0].group_instance_id == "a"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_name_one_member(stage, version: int) -> None:
    (member,), _ = stage.stable()
    stranger = m.LeaveGroupRequest(group_id="g", member_id="stranger")
    assert stage.ask(stranger, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.ask(m.LeaveGroupRequest(group_id="g", member_id=member), version).error_code == 0


def test_of_a_group_that_is_not_there(stage) -> None:
    assert stage.leave("a", "b") == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    reply = stage.ask(m.LeaveGroupRequest(group_id="", members=[]), 5)
    assert reply.error_code == ErrorCode.INVALID_GROUP_ID


def test_one_who_waits_for_the_generation_is_answered_when_it_leaves(stage) -> None:
    (first,), _ = stage.stable()
    second, joining = stage.join_new()
    stage.leave(second)
    assert stage.answer(joining).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.answer(stage.join(first)).error_code == 0


def test_one_who_waits_for_its_part_is_answered_when_it_leaves(stage) -> None:
    joins = [stage.join_new() for _ in range(2)]
    stage.pass_time(6000)
    (_, _), (follower, _) = joins
    waiting = stage.sync(follower, 1)
    stage.leave(follower)
    assert stage.answer(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_id_is_given_back_without_a_rebalance(stage) -> None:
    (member,), generation = stage.stable()
    promised = stage.answer(stage.join()).member_id
    assert stage.leave(promised) == [0]
    assert stage.heartbeat(member, generation) == 0
    assert stage.answer(stage.join(promised)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_id_that_is_given_back_no_longer_holds_up_the_others(stage) -> None:
    (first,), _ = stage.stable()
    promised = stage.answer(stage.join()).member_id
    again = stage.join(first)
    assert stage.answer(again) is None
    stage.leave(promised)
    assert stage.answer(again).error_code == 0


def test_only_given_id_of_a_new_group_that_is_given_back_leaves_nothing(stage) -> None:
    promised = stage.answer(stage.join()).member_id
    stage.leave(promised)
    assert stage.shard.groups == {}


def test_silent_member_is_removed(stage) -> None:
    (one, two), generation = stage.stable(2, session_ms=20_000)
    stage.pass_time(15_000)
    assert stage.heartbeat(one, generation) == 0
    stage.pass_time(5000)
    assert stage.heartbeat(one, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.heartbeat(two, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    cause = stage.shard.history("g")[-1].causes[0]
    assert (cause.why, cause.member_id) == (Why.TIMED_OUT, two)


def test_all_silent_members_leave_an_empty_group_in_the_log(stage) -> None:
    stage.stable(3)
    stage.pass_time(30_000)
    assert stage.group().state_name == "Empty"
    assert stage.loaded_again().groups["g"].state_name == "Empty"


def test_sessions_run_anew_after_a_failover(stage) -> None:
    (member,), generation = stage.stable()
    stage.pass_time(9000)
    stage.fail_over()
    stage.pass_time(9000)
    assert stage.heartbeat(member, generation) == 0
    stage.pass_time(10_000)
    assert stage.group().state_name == "Empty"


def test_silent_instance_that_was_turned_back_while_it_waited_is_still_noticed(stage) -> None:
    tokens = [stage.join(instance=each, session_ms=6000, rebalance_ms=20_000) for each in ("a", "b")]
    stage.pass_time(6000)
    leader, follower = (stage.answer(token).member_id for token in tokens)
    waiting = stage.sync(follower, 1, instance="b")
    stage.pass_time(5000)
    stage.heartbeat(leader, 1, "a")
    stage.pass_time(5000)  # the follower's session has run out by now
    stage.join(leader, instance="a", topics=("u",), session_ms=6000)
    assert stage.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    stage.pass_time(6000)
    assert list(stage.group().static_members) == ["a"]


def test_known_member_that_waits_for_a_generation_is_not_silent(stage) -> None:
    (one, two), _ = stage.stable(2, session_ms=20_000)
    waiting = stage.join(one, topics=("u",), session_ms=6000)
    for _ in range(3):
        stage.pass_time(15_000)
        assert stage.heartbeat(two, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.join(two, session_ms=20_000)
    assert stage.answer(waiting).error_code == 0
