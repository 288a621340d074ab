"""What the group remembers of its rebalances."""

from __future__ import annotations

from typing import Any

from millpond.coordinators.groups.history import Why


def test_who_came_what_moved_and_how_long_it_took(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "a")
    harness.pass_time(1_000)
    harness.join("m2", "a")
    harness.pass_time(500)
    kept = in_reply(harness.beat("m1", 1))
    harness.pass_time(500)
    harness.beat("m1", 1, owned=kept)
    harness.beat("m2", 2)
    first, second = harness.group.history.rebalances
    assert [(cause.why, cause.member_id) for cause in first.causes] == [(Why.JOINED, "m1")]
    assert (first.generation, first.members, first.protocol, first.paused_ms) == (1, 1, "uniform", 0)
    assert {(move.topic, move.before, move.after) for move in first.moves} == {("a", None, "m1")}
    assert [(cause.why, cause.member_id) for cause in second.causes] == [(Why.JOINED, "m2")]
    assert (second.moves_total, second.paused_ms) == (2, 1_000)
    assert {(move.before, move.after) for move in second.moves} == {("m1", "m2")}
    assert second.as_json()["causes"][0]["client_id"] == "c"


def test_why_members_go(harness: Any) -> None:
    harness.join("m1", "a")
    harness.join("m2", "a")
    harness.beat("m1", 1)
    harness.leave("m2")
    harness.grow("a", 7)
    harness.topics_changed()
    harness.pass_time(45_000)
    *_, last = harness.group.history.rebalances
    assert [cause.why for cause in last.causes] == [Why.JOINED, Why.LEFT, Why.TOPICS_CHANGED, Why.TIMED_OUT]
    assert last.finished_ms == harness.now_ms


def test_subscriptions_and_slow_members(harness: Any) -> None:
    harness.join("m1", "a")
    harness.beat("m1", 1, subscribed_topic_names=["b"])
    for _ in range(2):
        harness.pass_time(30_000)
        harness.beat("m1", 1)
    *_, last = harness.group.history.rebalances
    assert [cause.why for cause in last.causes] == [Why.SUBSCRIPTION_CHANGED, Why.DID_NOT_REVOKE]


def test_memory_is_bounded(harness: Any) -> None:
    for number in range(150):
        harness.join(f"m{number}", "a")
        harness.leave(f"m{number}")
    assert len(harness.group.history.rebalances) == 100
