"""The phases of a rebalance, and what ends them."""

from collections.abc import Callable

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.settings import ALONE_MS, CHOSEN_BY_GROUP


def test_member_that_never_fetches_its_part_is_removed_after_the_rebalance_timeout(coordinator) -> None:
    joins = [coordinator.join_new(rebalance_ms=20_000, session_ms=25_000) for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    coordinator.answer(coordinator.sync(leader, 1, {}))
    for _ in range(2):
        coordinator.pass_time(9000)
        assert coordinator.heartbeat(follower, 1) == 0
    coordinator.pass_time(2000)
    assert coordinator.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.shard.history("g")[-1].causes[-1].why is Why.DID_NOT_SYNC


def test_leader_that_never_shares_out_is_removed_and_the_next_one_leads(coordinator) -> None:
    joins = [coordinator.join_new(rebalance_ms=20_000, session_ms=25_000) for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    waiting = coordinator.sync(follower, 1)
    for _ in range(2):
        coordinator.pass_time(10_000)
        coordinator.heartbeat(leader, 1)
    assert coordinator.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    reply = coordinator.answer(coordinator.join(follower))
    assert (reply.leader, reply.generation_id) == (follower, 2)


def test_no_member_is_removed_once_all_have_synced(coordinator) -> None:
    (member,), generation = coordinator.stable(rebalance_ms=20_000)
    for _ in range(5):
        coordinator.pass_time(9000)
        assert coordinator.heartbeat(member, generation) == 0


def test_patience_is_that_of_the_most_patient_member(coordinator) -> None:
    coordinator.join_new(rebalance_ms=10_000)
    coordinator.join_new(rebalance_ms=50_000)
    assert coordinator.group().rebalance_timeout_ms == 50_000


def test_leadership_passes_on_when_the_leader_does_not_come_back(coordinator) -> None:
    (leader, follower), _ = coordinator.stable(2, session_ms=30_000, rebalance_ms=10_000)
    request_id = coordinator.join(follower, topics=("u",), rebalance_ms=10_000, session_ms=30_000)
    coordinator.pass_time(10_000)
    reply = coordinator.answer(request_id)
    assert (reply.leader, [each.member_id for each in reply.members]) == (follower, [follower])
    assert leader not in coordinator.group().members


def test_first_member_that_leaves_before_the_first_generation_empties_the_group(coordinator) -> None:
    member, joining = coordinator.join_new()
    coordinator.leave(member)
    assert coordinator.answer(joining).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    coordinator.pass_time(3000)
    assert coordinator.group().state_name == "Empty"
    coordinator.stable()


def test_unload_sends_everybody_to_the_next_coordinator(coordinator) -> None:
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    waiting = coordinator.sync(joins[1][0], 1)
    _, joining = coordinator.join_new(group="other")
    coordinator.take(coordinator.shard.unload())
    assert coordinator.answer(waiting).error_code == ErrorCode.NOT_COORDINATOR
    assert coordinator.answer(joining).error_code == ErrorCode.NOT_COORDINATOR
    assert coordinator.shard.unload().replies == []


def test_absent_static_members_without_patience_are_not_asked_for_in_circles(coordinator) -> None:
    """Found by hostile clients: the node did nothing else any more."""
    joined = coordinator.join(instance="a", session_ms=30_000)
    coordinator.pass_time(3000)
    static = coordinator.answer(joined)
    coordinator.sync(static.member_id, 1, {}, instance="a")
    again = coordinator.answer(coordinator.join(instance="a", session_ms=30_000, rebalance_ms=0))
    assert coordinator.heartbeat(again.member_id, again.generation_id, instance="a") == 0
    other, _ = coordinator.join_new(rebalance_ms=100)
    coordinator.leave(other)
    coordinator.now_ms += 100
    coordinator.take(coordinator.shard.on_timer(coordinator.now_ms))
    assert coordinator.shard.next_deadline_ms() >= coordinator.now_ms + 1_000
    back = coordinator.join(again.member_id, instance="a", session_ms=30_000, rebalance_ms=0)
    assert coordinator.answer(back).generation_id == again.generation_id + 1


def test_static_member_that_comes_back_to_a_group_that_was_gathering_does_not_wait(
    make_coordinator: Callable,
) -> None:
    """The others have left meanwhile: there is nobody to wait for."""
    coordinator = make_coordinator(initial_rebalance_delay_ms=CHOSEN_BY_GROUP)
    joining = coordinator.join(instance="a", rebalance_ms=1000)
    coordinator.pass_time(ALONE_MS)
    static = coordinator.answer(joining)
    coordinator.sync(static.member_id, 1, {}, instance="a")
    coordinator.pass_time(500)
    other, _ = coordinator.join_new(rebalance_ms=1000)
    coordinator.leave(other)
    coordinator.pass_time(3000)
    assert coordinator.group().state_name == "PreparingRebalance"
    back = coordinator.answer(coordinator.join(instance="a", rebalance_ms=1000))
    assert (back.error_code, back.generation_id, back.leader) == (0, 2, back.member_id)
