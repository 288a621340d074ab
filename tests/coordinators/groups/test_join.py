"""JoinGroup as a play: who asks what, and what they hear."""

from collections.abc import Callable
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.history import Why
from millpond.coordinators.groups.settings import ALONE_MS, COMPANY_MS

FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


def test_new_member_gets_its_id_first_and_its_generation_after_the_initial_delay(coordinator) -> None:
    told = coordinator.answer(coordinator.join(client_id="app"))
    assert told.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("app-")
    request_id = coordinator.join(told.member_id)
    coordinator.pass_time(2999)
    assert coordinator.answer(request_id) is None
    coordinator.pass_time(1)
    reply = coordinator.answer(request_id)
    assert (reply.error_code, reply.generation_id, reply.protocol_name) == (0, 1, "range")
    assert (reply.leader, reply.member_id, reply.protocol_type) == (told.member_id, told.member_id, "consumer")
    assert [each.member_id for each in reply.members] == [told.member_id]
    assert not reply.skip_assignment


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_older_clients_join_without_an_id(coordinator, version: int) -> None:
    request_id = coordinator.join(version=version, rebalance_ms=-1 if version == 0 else 60_000)
    assert coordinator.answer(request_id) is None
    coordinator.pass_time(3000)
    assert coordinator.answer(request_id).error_code == 0


def test_version_0_has_the_session_timeout_for_rebalances_too(coordinator) -> None:
    coordinator.join(version=0, session_ms=7000, rebalance_ms=-1)
    assert coordinator.group().rebalance_timeout_ms == 7000


def test_without_initial_delay_the_first_member_leads_at_once(make_coordinator: Callable) -> None:
    coordinator = make_coordinator(initial_rebalance_delay_ms=0)
    _, request_id = coordinator.join_new()
    assert coordinator.answer(request_id).generation_id == 1


def test_each_newcomer_prolongs_the_initial_delay_until_the_rebalance_timeout(coordinator) -> None:
    _, first = coordinator.join_new(rebalance_ms=7000)
    for _ in range(3):
        coordinator.pass_time(2000)
        coordinator.join_new(rebalance_ms=7000)
    # 3000, then 3000 more for the newcomers, then the 1000 that are left of 7000.
    coordinator.pass_time(999)
    assert coordinator.answer(first) is None
    coordinator.pass_time(1)
    assert len(coordinator.answer(first).members) == 4


def test_only_the_leader_gets_the_member_list(coordinator) -> None:
    joins = [coordinator.join_new() for _ in range(3)]
    coordinator.pass_time(6000)
    replies = [coordinator.answer(request_id) for _, request_id in joins]
    assert [len(reply.members) for reply in replies] == [3, 0, 0]
    assert {reply.leader for reply in replies} == {joins[0][0]}
    assert {reply.generation_id for reply in replies} == {1}


def test_second_member_makes_the_first_join_again(coordinator) -> None:
    (first,), generation = coordinator.stable()
    second, joining = coordinator.join_new()
    assert coordinator.answer(joining) is None
    assert coordinator.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    again = coordinator.join(first)
    assert coordinator.answer(again).generation_id == coordinator.answer(joining).generation_id == 2
    assert [each.member_id for each in coordinator.answer(again).members] == [first, second]


def test_member_that_does_not_come_back_is_left_out(coordinator) -> None:
    (first,), _ = coordinator.stable(rebalance_ms=20_000, session_ms=30_000)
    second, joining = coordinator.join_new(rebalance_ms=5000)
    coordinator.pass_time(19_999)
    assert coordinator.answer(joining) is None
    coordinator.pass_time(1)
    reply = coordinator.answer(joining)
    assert (reply.leader, [each.member_id for each in reply.members]) == (second, [second])
    assert coordinator.heartbeat(first, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert Why.DID_NOT_JOIN in [cause.why for cause in coordinator.shard.history("g")[-1].causes]


def test_new_member_that_is_gone_does_not_block_the_others_forever(make_coordinator: Callable) -> None:
    coordinator = make_coordinator(new_member_join_timeout_ms=5000)
    (first,), generation = coordinator.stable(rebalance_ms=60_000, session_ms=60_000)
    _, joining = coordinator.join_new()
    coordinator.pass_time(5000)
    assert coordinator.answer(joining).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    again = coordinator.join(first)
    assert [each.member_id for each in coordinator.answer(again).members] == [first]
    assert generation + 1 == coordinator.answer(again).generation_id


@pytest.mark.parametrize(("session_ms", "ok"), [(5999, False), (6000, True), (1_800_000, True), (1_800_001, False)])
def test_session_timeout_has_bounds(coordinator, session_ms: int, ok: bool) -> None:
    code = coordinator.answer(coordinator.join(session_ms=session_ms)).error_code
    assert code == (ErrorCode.MEMBER_ID_REQUIRED if ok else ErrorCode.INVALID_SESSION_TIMEOUT)


def test_group_needs_a_name(coordinator) -> None:
    assert coordinator.answer(coordinator.join(group="")).error_code == ErrorCode.INVALID_GROUP_ID


def test_instance_is_named_like_a_topic(coordinator) -> None:
    assert coordinator.answer(coordinator.join(instance="no spaces")).error_code == ErrorCode.INVALID_CONFIG


def test_unknown_group_or_member_id_is_refused(coordinator) -> None:
    assert coordinator.answer(coordinator.join("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "g" not in coordinator.shard.groups
    coordinator.stable()
    reply = coordinator.answer(coordinator.join("ghost", version=9))
    assert (reply.error_code, reply.member_id, reply.protocol_name) == (ErrorCode.UNKNOWN_MEMBER_ID, "ghost", None)


@pytest.mark.parametrize(
    "wrong", [{"protocols": ("sticky",)}, {"protocol_type": "connect"}, {"protocols": ()}, {"protocol_type": ""}]
)
def test_members_must_have_a_protocol_in_common(coordinator, wrong: dict) -> None:
    coordinator.stable(protocols=("range", "roundrobin"))
    assert coordinator.answer(coordinator.join(**wrong)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("wrong", [{"protocols": ()}, {"protocol_type": ""}])
def test_first_member_must_name_a_protocol_and_leaves_no_trace_otherwise(coordinator, wrong: dict) -> None:
    assert coordinator.answer(coordinator.join(**wrong)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.shard.groups == {}


def test_protocol_is_chosen_by_votes_among_those_that_all_know(coordinator) -> None:
    _, first = coordinator.join_new(protocols=("a", "b", "c"))
    coordinator.join_new(protocols=("c", "b"))
    coordinator.join_new(protocols=("b", "c"))
    coordinator.pass_time(6000)
    # a is not common; the first member then likes b, and so does the third.
    assert coordinator.answer(first).protocol_name == "b"


def test_upgrade_from_one_assignor_to_another_in_two_rounds(coordinator) -> None:
    (one, two), _ = coordinator.stable(2, protocols=("range",))
    both = [coordinator.join(each, protocols=("sticky", "range")) for each in (one, two)]
    assert coordinator.answer(both[0]).protocol_name == "sticky"
    coordinator.settle(both)
    alone = [coordinator.join(each, protocols=("sticky",)) for each in (one, two)]
    assert coordinator.answer(alone[1]).protocol_name == "sticky"


def test_size_limit(make_coordinator: Callable) -> None:
    coordinator = make_coordinator(group_size_max=2)
    (one, two), _ = coordinator.stable(2)
    refused = coordinator.answer(coordinator.join())
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    # Members themselves may join again.
    again = [coordinator.join(one, topics=("u",)), coordinator.join(two)]
    assert [coordinator.answer(request_id).error_code for request_id in again] == [0, 0]


def test_group_over_its_limit_after_loading_sheds_the_last_to_come(make_coordinator: Callable, image) -> None:
    coordinator = make_coordinator()
    ids, _ = coordinator.stable(3)
    coordinator.settings = type(coordinator.settings)(group_size_max=2)
    coordinator.fail_over()
    assert coordinator.heartbeat(ids[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    request_ids = [coordinator.join(each) for each in ids]
    assert coordinator.answer(request_ids[2]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [coordinator.answer(request_id).error_code for request_id in request_ids[:2]] == [0, 0]


def large_instances(coordinator, count: int, length: int) -> list:
    """So many static members that have joined together, and whose leader has given nobody anything."""
    request_ids = [
        coordinator.join(instance=f"i{each}", topics=("x" * length,), session_ms=60_000) for each in range(count)
    ]
    coordinator.pass_time(3000 * (count + 1))
    joined = [coordinator.answer(request_id) for request_id in request_ids]
    leader = next(each for each in joined if each.member_id == each.leader)
    coordinator.sync(leader.member_id, leader.generation_id, {}, instance="i0")
    assert coordinator.group().state_name == "Stable"
    return joined


def test_all_members_together_may_say_only_so_much(make_coordinator: Callable) -> None:
    """All of it is written again when one of them rejoins, however small its request is."""
    coordinator = make_coordinator(group_bytes_max=20_000)
    large_instances(coordinator, 3, 5000)
    assert coordinator.answer(coordinator.join(instance="i3", topics=("x" * 5000,))).error_code == FULL
    assert len(coordinator.group().members) == 3
    assert coordinator.answer(coordinator.join(instance="i0", topics=("y" * 11_000,))).error_code == FULL
    member = coordinator.group().static_members["i1"]
    assert coordinator.answer(coordinator.join(member, instance="i1", topics=("y" * 11_000,))).error_code == FULL
    assert coordinator.group().state_name == "Stable"
    assert coordinator.heartbeat(member, 1, "i1") == 0, "who was refused is in the group as before"
    assert coordinator.answer(coordinator.join(instance="i0", topics=())).error_code == 0
    assert coordinator.join(instance="i3", topics=("x" * 5000,)) is not None
    assert len(coordinator.group().members) == 4, "there is room again"
    assert max(len(each.value or b"") for each in coordinator.log) <= 20_000


def test_a_group_that_was_larger_already_when_it_was_loaded_goes_on(make_coordinator: Callable) -> None:
    coordinator = make_coordinator()
    large_instances(coordinator, 3, 5000)
    coordinator.settings = type(coordinator.settings)(group_bytes_max=10_000)
    coordinator.fail_over()
    assert coordinator.answer(coordinator.join(instance="i1", topics=("y" * 6000,))).error_code == FULL, (
        "it grows no more"
    )
    assert coordinator.answer(coordinator.join(instance="i3", topics=("y",))).error_code == FULL
    assert coordinator.answer(coordinator.join(instance="i1", topics=("y" * 5000,))).error_code == 0
    members = coordinator.group().static_members
    again = [
        coordinator.join(members[each], instance=each, topics=("z" * 5000,), session_ms=60_000)
        for each in ("i0", "i1", "i2")
    ]
    joined = [coordinator.answer(request_id) for request_id in again]
    assert [each.error_code for each in joined] == [0, 0, 0]
    given = {each.member_id: b"x" * 100 for each in joined}
    leader = next(each for each in joined if each.member_id == each.leader)
    instance = next(name for name, member in members.items() if member == leader.leader)
    synced = coordinator.answer(coordinator.sync(leader.member_id, leader.generation_id, given, instance=instance))
    assert (synced.error_code, synced.assignment) == (0, b"x" * 100)


def test_unused_member_ids_are_limited_and_expire(make_coordinator: Callable) -> None:
    coordinator = make_coordinator(pending_members_max=2)
    codes = [coordinator.answer(coordinator.join(session_ms=6000)).error_code for _ in range(3)]
    assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    coordinator.pass_time(6000)
    assert coordinator.shard.groups == {}


def test_rebalance_waits_for_those_who_were_given_an_id(coordinator) -> None:
    (first,), _ = coordinator.stable()
    promised = coordinator.answer(coordinator.join()).member_id
    again = coordinator.join(first, topics=("u",))
    assert coordinator.answer(again) is None
    late = coordinator.join(promised)
    assert coordinator.answer(again).generation_id == coordinator.answer(late).generation_id == 2


def test_rebalance_goes_on_when_a_given_id_runs_out(coordinator) -> None:
    (first,), _ = coordinator.stable(session_ms=20_000)
    coordinator.join(session_ms=6000)
    again = coordinator.join(first, topics=("u",))
    coordinator.pass_time(5999)
    assert coordinator.answer(again) is None
    coordinator.pass_time(1)
    assert coordinator.answer(again).generation_id == 2


def test_given_id_is_for_a_dynamic_member(coordinator) -> None:
    promised = coordinator.answer(coordinator.join()).member_id
    assert coordinator.answer(coordinator.join(promised, instance="i")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_follower_that_missed_the_reply_gets_it_again(coordinator) -> None:
    (leader, follower), generation = coordinator.stable(2)
    reply = coordinator.answer(coordinator.join(follower))
    assert (reply.generation_id, reply.leader, reply.members) == (generation, leader, [])
    assert coordinator.heartbeat(leader, generation) == 0


def test_leader_that_joins_again_asks_for_a_new_assignment(coordinator) -> None:
    (leader, follower), generation = coordinator.stable(2)
    request_id = coordinator.join(leader, reason="topic t has more partitions")
    assert coordinator.heartbeat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.answer(request_id) is None
    coordinator.join(follower)
    assert coordinator.answer(request_id).generation_id == generation + 1
    cause = coordinator.shard.history("g")[-1].causes[0]
    assert (cause.why, cause.member_id, cause.detail) == (Why.LEADER_ASKED, leader, "topic t has more partitions")


def test_changed_subscription_rebalances(coordinator) -> None:
    (leader, follower), generation = coordinator.stable(2)
    coordinator.join(follower, topics=("t", "u"))
    assert coordinator.heartbeat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.shard.history("g")[-1].causes[0].why is Why.SUBSCRIPTION_CHANGED


def test_a_join_repeated_before_the_assignment_gets_the_same_response(coordinator) -> None:
    leader, first = coordinator.join_new()
    coordinator.pass_time(3000)
    again = coordinator.join(leader)
    assert coordinator.answer(again) == coordinator.answer(first)


def test_while_the_leader_shares_out_a_change_turns_everybody_back(coordinator) -> None:
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    waiting = coordinator.sync(follower, 1)
    changed = coordinator.join(leader, topics=("u",))
    assert coordinator.answer(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.answer(changed) is None


def test_join_that_is_sent_twice_is_answered_twice(coordinator) -> None:
    (leader, follower), _ = coordinator.stable(2)
    one = coordinator.join(leader)
    two = coordinator.join(leader)
    assert coordinator.answer(one).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.join(follower)
    assert coordinator.answer(two).error_code == 0


def test_protocol_that_is_named_twice_counts_once(coordinator) -> None:
    coordinator.join_new(protocols=("a", "b", "a"))
    (member,) = coordinator.group().members.values()
    assert [name for name, _ in member.protocols] == ["a", "b"]


class TestStaticMembers:
    def stable(self, coordinator, *instances: str, version: int = 9) -> tuple[dict[str, str], int]:
        request_ids = [coordinator.join(instance=each, version=version, session_ms=30_000) for each in instances]
        coordinator.pass_time(9000)
        ids, generation = coordinator.settle(request_ids)
        return dict(zip(instances, ids, strict=True)), generation

    def test_is_let_in_at_once_and_named_after_its_instance(self, coordinator) -> None:
        ids, _ = self.stable(coordinator, "a")
        assert ids["a"].startswith("a-")

    def test_quick_restart_moves_nothing(self, coordinator, assigned: Callable) -> None:
        ids, generation = self.stable(coordinator, "a", "b")
        reply = coordinator.answer(coordinator.join(instance="b"))
        assert (reply.error_code, reply.generation_id) == (0, generation)
        assert reply.member_id != ids["b"]
        assert reply.leader == ids["a"]
        sync = coordinator.answer(coordinator.sync(reply.member_id, generation, instance="b"))
        assert sync.assignment == assigned(("t", 1))
        assert coordinator.heartbeat(ids["a"], generation, "a") == 0
        last = coordinator.shard.history("g")[-1]
        assert (last.causes[0].why, last.moves, last.paused_ms) == (Why.RESTARTED, [], 0)

    def test_predecessor_is_fenced(self, coordinator) -> None:
        ids, generation = self.stable(coordinator, "a")
        coordinator.join(instance="a")
        old = ids["a"]
        assert coordinator.heartbeat(old, generation, "a") == ErrorCode.FENCED_INSTANCE_ID
        assert (
            coordinator.answer(coordinator.sync(old, generation, instance="a")).error_code
            == ErrorCode.FENCED_INSTANCE_ID
        )
        assert coordinator.commit(1, old, generation, instance="a") == ErrorCode.FENCED_INSTANCE_ID
        assert coordinator.answer(coordinator.join(old, instance="a")).error_code == ErrorCode.FENCED_INSTANCE_ID

    def test_restart_survives_a_failover(self, coordinator) -> None:
        _, generation = self.stable(coordinator, "a", "b")
        new = coordinator.answer(coordinator.join(instance="b")).member_id
        coordinator.fail_over()
        assert coordinator.heartbeat(new, generation, "b") == 0

    def test_leader_that_restarts_skips_the_assignment(self, coordinator) -> None:
        _, generation = self.stable(coordinator, "a", "b")
        reply = coordinator.answer(coordinator.join(instance="a"))
        assert reply.skip_assignment
        assert reply.leader == reply.member_id
        assert len(reply.members) == 2
        assert reply.generation_id == generation

    def test_leader_that_cannot_skip_is_not_told_that_it_leads(self, coordinator) -> None:
        ids, _ = self.stable(coordinator, "a", "b")
        reply = coordinator.answer(coordinator.join(instance="a", version=8))
        assert reply.leader == ids["a"]
        assert reply.member_id != ids["a"]
        assert reply.members == []

    def test_restart_with_another_protocol_rebalances(self, coordinator) -> None:
        request_ids = [coordinator.join(instance=each, protocols=("x", "y")) for each in ("a", "b")]
        coordinator.pass_time(6000)
        ids, generation = coordinator.settle(request_ids)
        request_id = coordinator.join(instance="b", protocols=("y",))
        assert coordinator.answer(request_id) is None
        assert coordinator.heartbeat(ids[0], generation, "a") == ErrorCode.REBALANCE_IN_PROGRESS
        coordinator.join(ids[0], instance="a", protocols=("x", "y"))
        assert coordinator.answer(request_id).protocol_name == "y"

    def test_restart_while_joining_turns_the_predecessor_away(self, coordinator) -> None:
        old = coordinator.join(instance="a")
        new = coordinator.join(instance="a")
        assert coordinator.answer(old).error_code == ErrorCode.FENCED_INSTANCE_ID
        coordinator.pass_time(3000)
        assert [each.group_instance_id for each in coordinator.answer(new).members] == ["a"]

    def test_restart_while_the_leader_shares_out_begins_again(self, coordinator) -> None:
        request_ids = [coordinator.join(instance=each) for each in ("a", "b")]
        coordinator.pass_time(6000)
        old = coordinator.answer(request_ids[1]).member_id
        waiting = coordinator.sync(old, 1, instance="b")
        request_id = coordinator.join(instance="b")
        assert coordinator.answer(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
        assert coordinator.answer(request_id) is None
        leader = coordinator.answer(request_ids[0]).member_id
        coordinator.join(leader, instance="a")
        assert coordinator.answer(request_id).generation_id == 2

    def test_absent_one_is_gone_when_its_session_ends_before_the_rebalance_does(self, coordinator) -> None:
        ids, _ = self.stable(coordinator, "a", "b")
        request_id = coordinator.join(ids["a"], instance="a", topics=("u",), session_ms=30_000)
        coordinator.pass_time(29_999)
        assert coordinator.answer(request_id) is None
        coordinator.pass_time(1)
        assert [each.group_instance_id for each in coordinator.answer(request_id).members] == ["a"]

    def test_absent_one_is_still_a_member_when_its_session_outlasts_the_rebalance(self, coordinator) -> None:
        request_ids = [coordinator.join(instance=each, session_ms=60_000, rebalance_ms=10_000) for each in ("a", "b")]
        coordinator.pass_time(6000)
        ids, _ = coordinator.settle(request_ids)
        request_id = coordinator.join(ids[0], instance="a", topics=("u",), session_ms=60_000, rebalance_ms=10_000)
        coordinator.pass_time(10_000)
        assert [each.group_instance_id for each in coordinator.answer(request_id).members] == ["a", "b"]

    def test_group_waits_while_only_absent_static_members_are_left(self, coordinator) -> None:
        request_ids = [coordinator.join(instance=each, session_ms=90_000, rebalance_ms=10_000) for each in ("a", "b")]
        coordinator.pass_time(6000)
        coordinator.settle(request_ids)
        coordinator.leave(instances=["a"])
        coordinator.pass_time(35_000)
        assert coordinator.group().state_name == "PreparingRebalance"
        coordinator.pass_time(60_000)
        assert coordinator.group().state_name == "Empty"


# Where the delay before the first rebalance is left to the group.


@pytest.fixture
def choosing(make_coordinator: Callable) -> Any:
    return make_coordinator(initial_rebalance_delay_ms=-1)


def test_a_member_that_is_alone_gets_everything_after_a_moment(choosing: Any) -> None:
    _, joining = choosing.join_new()
    choosing.pass_time(ALONE_MS - 1)
    assert choosing.answer(joining) is None
    choosing.pass_time(1)
    assert choosing.answer(joining).generation_id == 1


def test_it_does_so_again_after_it_has_left(choosing: Any) -> None:
    member, _ = choosing.join_new()
    choosing.pass_time(ALONE_MS)
    choosing.leave(member)
    _, joining = choosing.join_new()
    choosing.pass_time(ALONE_MS)
    assert choosing.answer(joining).generation_id > 1


def test_members_that_start_together_share_the_first_generation(choosing: Any) -> None:
    """Each one that joins within the wait for the one before makes the group wait for the next."""
    joins = [choosing.join_new()[1]]
    choosing.pass_time(ALONE_MS - 1)
    for _ in range(4):
        joins.append(choosing.join_new()[1])
        choosing.pass_time(900)
    assert [choosing.answer(each) for each in joins] == [None] * 5
    choosing.pass_time(2 * COMPANY_MS)
    assert [choosing.answer(each).generation_id for each in joins] == [1] * 5


def test_members_that_keep_coming_are_not_waited_for_longer_than_a_rebalance_may_take(choosing: Any) -> None:
    _, first = choosing.join_new(rebalance_ms=3000)
    for _ in range(15):
        choosing.pass_time(200)
        choosing.join_new(rebalance_ms=3000)
    assert choosing.answer(first).generation_id == 1


def test_a_member_that_has_just_been_given_its_id_is_waited_for(choosing: Any) -> None:
    _, first = choosing.join_new()
    given = choosing.answer(choosing.join()).member_id
    choosing.pass_time(ALONE_MS)
    assert choosing.answer(first) is None
    second = choosing.join(given)
    choosing.pass_time(2 * COMPANY_MS)
    assert [choosing.answer(each).generation_id for each in (first, second)] == [1, 1]


def test_a_second_member_soon_after_lets_the_group_wait_for_a_third(choosing: Any) -> None:
    first, _ = choosing.join_new()
    choosing.pass_time(ALONE_MS)
    choosing.answer(choosing.sync(first, 1, {first: b""}))
    choosing.pass_time(1000)
    _, second = choosing.join_new()
    assert choosing.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    again = choosing.join(first)
    choosing.pass_time(COMPANY_MS - 1)
    assert choosing.answer(again) is None
    _, third = choosing.join_new()
    choosing.pass_time(2 * COMPANY_MS)
    generations = [choosing.answer(each).generation_id for each in (again, second, third)]
    assert generations == [2, 2, 2]


def test_members_that_come_one_by_one_wait_no_longer_than_for_the_last_of_them(choosing: Any) -> None:
    """As processes of one program on a busy machine do. Each one used to make all others wait for 3 s more."""
    first, _ = choosing.join_new()
    choosing.pass_time(ALONE_MS)
    choosing.answer(choosing.sync(first, 1, {first: b""}))
    joins = []
    for _ in range(3):
        choosing.pass_time(800)
        joins.append(choosing.join_new()[1])
    joins.append(choosing.join(first))
    choosing.pass_time(2 * COMPANY_MS)
    assert [choosing.answer(each).generation_id for each in joins] == [2] * 4


def test_the_group_waits_for_a_first_member_that_learns_of_the_others_late(choosing: Any) -> None:
    first, _ = choosing.join_new(session_ms=30_000)
    choosing.pass_time(ALONE_MS)
    choosing.answer(choosing.sync(first, 1, {first: b""}))
    _, second = choosing.join_new()
    choosing.pass_time(8000)
    assert choosing.answer(second) is None
    again = choosing.join(first, session_ms=30_000)
    assert choosing.answer(again).generation_id == 2
    assert choosing.answer(second).generation_id == 2


def test_a_second_member_that_comes_late_is_an_ordinary_rebalance(choosing: Any) -> None:
    first, _ = choosing.join_new()
    choosing.pass_time(ALONE_MS)
    choosing.answer(choosing.sync(first, 1, {first: b""}))
    choosing.pass_time(3000)
    _, second = choosing.join_new()
    choosing.join(first)
    assert choosing.answer(second).generation_id == 2


def test_a_group_that_had_several_members_waits_for_them_to_come_back(choosing: Any) -> None:
    first, _ = choosing.join_new()
    choosing.pass_time(ALONE_MS)
    choosing.answer(choosing.sync(first, 1, {first: b""}))
    choosing.pass_time(3000)
    second, _ = choosing.join_new()
    choosing.leave(first, second)
    _, joining = choosing.join_new()
    assert choosing.answer(joining) is None
    choosing.pass_time(2999)
    _, other = choosing.join_new()
    choosing.pass_time(1)
    assert choosing.answer(joining) is None, "nobody has joined for 1 s first"
    choosing.pass_time(COMPANY_MS)
    assert choosing.answer(joining).error_code == choosing.answer(other).error_code == 0
