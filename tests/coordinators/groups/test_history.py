"""A rebalance can be explained: who, why, what moved, how long."""

import json
from collections.abc import Callable

import pytest

from millpond.base.errors import MalformedMessage
from millpond.coordinators.groups.history import (
    ASSIGNMENTS_BYTES_MAX,
    BURST_MAX,
    CAUSES_MAX,
    MOVES_MAX,
    NOT_COUNTED,
    PUBLISH_EVERY_MS,
    Cause,
    History,
    Move,
    Rebalance,
    Why,
    assigned_partitions,
    moves_between,
    owners,
)
from millpond.coordinators.groups.records import EMBEDDED_ITEMS_MAX, prefix_of
from millpond.wire import messages as m


def test_story_of_a_second_member(coordinator, assigned: Callable) -> None:
    (first,), _ = coordinator.stable(client_id="one")
    coordinator.pass_time(5000)
    began = coordinator.now_ms
    second, joining = coordinator.join_new(client_id="two", reason="scaled out")
    coordinator.pass_time(2000)
    coordinator.heartbeat(first, 1)
    again = coordinator.join(first, client_id="one")
    coordinator.pass_time(500)
    given = {first: assigned(("t", 0)), second: assigned(("t", 1), ("t", 2))}
    waiting = coordinator.sync(second, 2)
    coordinator.sync(first, 2, given)
    assert coordinator.answer(waiting).assignment == given[second]
    assert coordinator.answer(again).generation_id == coordinator.answer(joining).generation_id == 2
    opening, rebalance = coordinator.shard.history("g")
    assert opening.moves == [Move("t", 0, None, first)]
    assert (rebalance.generation, rebalance.members, rebalance.leader) == (2, 2, first)
    assert rebalance.protocol == "range"
    assert (rebalance.started_ms, rebalance.paused_ms) == (began, 2500)
    assert rebalance.moves == [Move("t", 1, None, second), Move("t", 2, None, second)]
    joined, rejoined = rebalance.causes
    assert (joined.why, joined.member_id, joined.client_id) == (Why.JOINED, second, "two")
    assert (joined.detail, joined.client_host) == ("scaled out", "/10.0.0.1")
    assert (rejoined.why, rejoined.member_id) == (Why.REJOINED, first)


def test_pause_ends_with_the_last_member_to_fetch_its_part(coordinator) -> None:
    joins = [coordinator.join_new() for _ in range(2)]
    coordinator.pass_time(6000)
    (leader, _), (follower, _) = joins
    coordinator.sync(leader, 1, {})
    (rebalance,) = coordinator.shard.history("g")
    assert rebalance.assigned_ms is not None
    assert rebalance.paused_ms is None
    coordinator.pass_time(1500)
    coordinator.sync(follower, 1)
    assert rebalance.paused_ms == rebalance.finished_ms - rebalance.started_ms == 7500


def test_partitions_of_one_who_left_are_shown_moving(coordinator, assigned: Callable) -> None:
    (one, two), _ = coordinator.stable(2)
    coordinator.leave(two)
    request_id = coordinator.join(one)
    coordinator.sync(one, coordinator.answer(request_id).generation_id, {one: assigned(("t", 0), ("t", 1))})
    last = coordinator.shard.history("g")[-1]
    assert last.moves == [Move("t", 1, two, one)]


def test_emptied_group_is_the_end_of_a_story(coordinator) -> None:
    (member,), generation = coordinator.stable()
    coordinator.leave(member)
    last = coordinator.shard.history("g")[-1]
    assert (last.generation, last.members, last.finished_ms) == (generation + 1, 0, coordinator.now_ms)


def test_is_json(coordinator) -> None:
    coordinator.stable()
    (rebalance,) = coordinator.shard.history("g")
    told = json.loads(json.dumps(rebalance.as_json()))
    assert told["causes"][0]["why"] == "joined"
    assert told["moves"][0]["topic"] == "t"
    assert told["paused_ms"] == rebalance.paused_ms


def test_unknown_group_has_no_story(coordinator) -> None:
    assert coordinator.shard.history("nobody") == []


def test_is_bounded() -> None:
    history = History(2)
    for number in range(5):
        history.note(Cause(Why.JOINED, str(number), number))
        history.finished(number)
    assert [each.causes[0].member_id for each in history.rebalances] == ["3", "4"]
    for number in range(CAUSES_MAX + 5):
        history.note(Cause(Why.JOINED, str(number), number))
    assert len(history.rebalances[-1].causes) == CAUSES_MAX


def test_many_moves_are_counted_and_some_named(assigned: Callable) -> None:
    history = History(1)
    history.note(Cause(Why.JOINED, "m", 0))
    history.assigned({}, {"m": assigned(*(("t", each) for each in range(MOVES_MAX + 10)))}, 1)
    (rebalance,) = history.rebalances
    assert (len(rebalance.moves), rebalance.moves_total) == (MOVES_MAX, MOVES_MAX + 10)


def test_assignments_that_are_too_large_are_not_looked_into(assigned: Callable) -> None:
    """A leader's word is mere bytes: a million partitions in it kept everybody waiting for seconds."""
    history = History(1)
    history.note(Cause(Why.JOINED, "m", 0))
    history.assigned({}, {"m": assigned(*(("t", each) for each in range(ASSIGNMENTS_BYTES_MAX // 4)))}, 1)
    (rebalance,) = history.rebalances
    assert (rebalance.moves, rebalance.moves_total, rebalance.assigned_ms) == ([], NOT_COUNTED, 1)


def test_long_names_are_cut_where_they_are_written_down(assigned: Callable) -> None:
    long = "x" * 32_000
    history = History(1)
    history.note(Cause(Why.JOINED, long, 0, client_id=long))
    history.generation_began(1, 1, long, long)
    history.assigned({}, {long: assigned((long, 0))}, 1)
    assert len(json.dumps(history.rebalances[0].as_json())) < 3_000


def test_subscriptions_that_name_too_much_are_not_understood() -> None:
    kind = m.ConsumerProtocolSubscription
    said = b"\0\0" + kind(topics=["t"] * (EMBEDDED_ITEMS_MAX + 1), user_data=None).encode(0)
    with pytest.raises(MalformedMessage):
        prefix_of(kind, said)


def test_bytes_that_are_no_assignment_say_nothing() -> None:
    assert list(assigned_partitions(b"")) == list(assigned_partitions(b"\x00\x00\xff")) == []
    assert owners({"m": b"\x7f"}) == {}


def test_assignment_of_a_version_yet_unknown_is_read_as_far_as_it_is_known(assigned: Callable) -> None:
    later = b"\x00\x63" + assigned(("t", 4))[2:] + b"more"
    assert list(assigned_partitions(later)) == [("t", 4)]


def test_moves_are_what_differs() -> None:
    before = owners({})
    assert list(moves_between(before, before)) == []


def test_a_flood_of_rebalances_is_published_in_part_and_says_how_many_were_left_out() -> None:
    published: list[Rebalance] = []
    history = History(10)
    history.publish = published.append
    for number in range(1000):
        history.note(Cause(Why.JOINED, "m", 1_000_000 + number))
        history.finished(1_000_000 + number)
    assert len(published) == BURST_MAX
    for number in range(10):
        at_ms = 1_010_000 + number * PUBLISH_EVERY_MS
        history.note(Cause(Why.JOINED, "m", at_ms))
        history.finished(at_ms)
    assert len(published) == BURST_MAX + 10
    assert [each.left_out for each in published[BURST_MAX:]] == [1000 - BURST_MAX, *[0] * 9]
