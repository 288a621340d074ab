"""The phases of a rebalance, and what ends them."""

from collections.abc import Callable

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.settings import ALONE_MS, CHOSEN_BY_GROUP


def test_member_that_never_fetches_its_part_is_removed_after_the_rebalance_timeout(stage) -> None:
    joins = [stage.join_new(rebalance_ms=20_000, session_ms=25_000) for _ in range(2)]
    stage.pass_time(6000)
    (leader, _), (follower, _) = joins
    stage.answer(stage.sync(leader, 1, {}))
    for _ in range(2):
        stage.pass_time(9000)
        assert stage.heartbeat(follower, 1) == 0
    stage.pass_time(2000)
    assert stage.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.shard.history("g")[-1].causes[-1].why is Why.DID_NOT_SYNC


def test_leader_that_never_shares_out_is_removed_and_the_next_one_leads(stage) -> None:
    joins = [stage.join_new(rebalance_ms=20_000, session_ms=25_000) for _ in range(2)]
    stage.pass_time(6000)
    (leader, _), (follower, _) = joins
    waiting = stage.sync(follower, 1)
    for _ in range(2):
        stage.pass_time(10_000)
        stage.heartbeat(leader, 1)
    assert stage.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    reply = stage.answer(stage.join(follower))
    assert (reply.leader, reply.generation_id) == (follower, 2)


def test_nobody_is_removed_once_all_have_fetched_their_part(stage) -> None:
    (member,), generation = stage.stable(rebalance_ms=20_000)
    for _ in range(5):
        stage.pass_time(9000)
        assert stage.heartbeat(member, generation) == 0


def test_patience_is_that_of_the_most_patient_member(stage) -> None:
    stage.join_new(rebalance_ms=10_000)
    stage.join_new(rebalance_ms=50_000)
    assert stage.group().rebalance_timeout_ms == 50_000


def test_leadership_passes_on_when_the_leader_does_not_come_back(stage) -> None:
    (leader, follower), _ = stage.stable(2, session_ms=30_000, rebalance_ms=10_000)
    token = stage.join(follower, topics=("u",), rebalance_ms=10_000, session_ms=30_000)
    stage.pass_time(10_000)
    reply = stage.answer(token)
    assert (reply.leader, [each.member_id for each in reply.members]) == (follower, [follower])
    assert leader not in stage.group().members


def test_first_member_that_leaves_before_the_first_generation_empties_the_group(stage) -> None:
    member, joining = stage.join_new()
    stage.leave(member)
    assert stage.answer(joining).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stage.pass_time(3000)
    assert stage.group().state_name == "Empty"
    stage.stable()


def test_unload_sends_everybody_to_the_next_coordinator(stage) -> None:
    joins = [stage.join_new() for _ in range(2)]
    stage.pass_time(6000)
    waiting = stage.sync(joins[1][0], 1)
    _, joining = stage.join_new(group="other")
    stage.take(stage.shard.unload())
    assert stage.answer(waiting).error_code == ErrorCode.NOT_COORDINATOR
    assert stage.answer(joining).error_code == ErrorCode.NOT_COORDINATOR
    assert stage.shard.unload().replies == []


def test_absent_static_members_without_patience_are_not_asked_for_in_circles(stage) -> None:
    """Found by hostile clients: the node did nothing else any more."""
    joined = stage.join(instance="a", session_ms=30_000)
    stage.pass_time(3000)
    static = stage.answer(joined)
    stage.sync(static.member_id, 1, {}, instance="a")
    again = stage.answer(stage.join(instance="a", session_ms=30_000, rebalance_ms=0))
    assert stage.heartbeat(again.member_id, again.generation_id, instance="a") == 0
    other, _ = stage.join_new(rebalance_ms=100)
    stage.leave(other)
    stage.now_ms += 100
    stage.take(stage.shard.on_time(stage.now_ms))
    assert stage.shard.next_deadline_ms() >= stage.now_ms + 1_000
    back = stage.join(again.member_id, instance="a", session_ms=30_000, rebalance_ms=0)
    assert stage.answer(back).generation_id == again.generation_id + 1


def test_static_member_that_comes_back_to_a_group_that_was_gathering_does_not_wait(make_stage: Callable) -> None:
    """The others have left meanwhile: there is nobody to wait for."""
    stage = make_stage(initial_rebalance_delay_ms=CHOSEN_BY_GROUP)
    joining = stage.join(instance="a", rebalance_ms=1000)
    stage.pass_time(ALONE_MS)
    static = stage.answer(joining)
    stage.sync(static.member_id, 1, {}, instance="a")
    stage.pass_time(500)
    other, _ = stage.join_new(rebalance_ms=1000)
    stage.leave(other)
    stage.pass_time(3000)
    assert stage.group().state_name == "PreparingRebalance"
    back = stage.answer(stage.join(instance="a", rebalance_ms=1000))
    assert (back.error_code, back.generation_id, back.leader) == (0, 2, back.member_id)
