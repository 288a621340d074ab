"""Rebalances in words, from records as the brokers write them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from millpond.admin.history import read_rebalance
from millpond.base.ids import TopicPartition
from millpond.cli.group.history import explain, short
from millpond.coordinators.groups.history import Cause, History, Rebalance, Why, moves_between

BEGAN_MS = 1_700_000_000_000
ALICE, BOB = "alice-0b5c1f1e-9a05-4b09-8e6d-ad38d5b1e2b9", "bob-d933cb3f-9a05-4b09-8e6d-ad38d5b1e2b9"


def rebalance(generation: int = 4) -> Rebalance:
    """Bob has died; what he read goes to Alice."""
    orders = [TopicPartition("orders", index) for index in range(5)]
    moves = list(moves_between(dict.fromkeys(orders[:4], BOB), dict.fromkeys(orders, ALICE)))
    return Rebalance(
        BEGAN_MS + generation * 60_000,
        causes=[Cause(Why.TIMED_OUT, BOB, BEGAN_MS, None, "bob", "10.0.0.2")],
        generation=generation,
        members=1,
        leader=ALICE,
        protocol="range",
        assigned_ms=BEGAN_MS + generation * 60_000 + 900,
        finished_ms=BEGAN_MS + generation * 60_000 + 1200,
        moves=moves,
        moves_total=len(moves),
    )


def explained(made: Rebalance) -> list[str]:
    read = read_rebalance(json.dumps(made.as_json()).encode())
    assert read is not None
    return list(explain(read, {cause.member_id: cause for cause in read.causes}))


def test_a_rebalance_says_when_why_and_what_moved() -> None:
    head, *lines = explained(rebalance())
    assert head.endswith("generation 4, 1 member, range, paused 1.2s")
    assert lines == [
        "  bob-d933cb3f on 10.0.0.2: session timed out",
        "  orders 0-3: bob-d933cb3f → alice-0b5c1f1e",
        "  orders 4: no member → alice-0b5c1f1e",
    ]


def test_what_did_not_move_and_why_in_the_clients_own_words() -> None:
    calm = History(5)
    cause = Cause(Why.RESTARTED, ALICE, BEGAN_MS, "till-1", "alice", "10.0.0.1", "update\x1b[31m done")
    calm.remember_calm(cause, 7, 2)
    head, *lines = explained(calm.rebalances[0])
    assert head.endswith("generation 7, 2 members, no pause")
    assert lines == [
        "  till-1 (alice-0b5c1f1e) on 10.0.0.1: static member came back (update\\x1b[31m done)",
        "  nothing moved",
    ]


def test_a_cause_that_is_no_member() -> None:
    made = rebalance()
    made.causes = [Cause(Why.TOPICS_CHANGED, "", BEGAN_MS, detail="refunds")]
    assert explained(made)[1] == "  subscribed topics changed (refunds)"


def test_those_that_only_came_along_are_counted() -> None:
    made = rebalance()
    made.causes += [Cause(Why.REJOINED, ALICE, BEGAN_MS, None, "alice", "10.0.0.1")] * 3
    assert explained(made)[1:3] == ["  bob-d933cb3f on 10.0.0.2: session timed out", "  3 members rejoined"]
    made.causes = made.causes[1:2]
    assert explained(made)[1] == "  alice-0b5c1f1e on 10.0.0.1: rejoined"


def test_the_last_one_to_leave() -> None:
    made = rebalance()
    made.generation, made.members, made.protocol, made.moves, made.moves_total = None, 0, None, [], 0
    head, *lines = explained(made)
    assert head.endswith("  no members left, paused 1.2s")
    assert lines == ["  bob-d933cb3f on 10.0.0.2: session timed out"]


def test_a_large_rebalance_is_shortened() -> None:
    made = rebalance()
    made.causes *= 14
    made.moves_total = 1200
    lines = explained(made)
    assert "  and 4 more causes" in lines
    assert lines[-1] == "  and 1,195 more partitions moved"


@pytest.mark.parametrize(
    ("member", "shown"),
    [(BOB, "bob-d933cb3f"), ("qzOVzNiIQw2jHcbnXXORnQ", "qzOVzNiIQw2jHcbnXXORnQ"), ("a\nb", r"a\x0ab")],
)
def test_a_member_is_named_shortly(member: str, shown: str) -> None:
    assert short(member) == shown


def test_history_is_read_from_its_topic(millpond: Any, quick: Any) -> None:
    topic = quick.create("fake-history", 2, retention_ms="-1")
    for generation in range(3, 15):
        value = json.dumps(rebalance(generation).as_json() | {"group": "billing"})
        quick.send(topic, value, key="billing", partition=1, timestamp=BEGAN_MS + generation * 60_000)
    quick.send(topic, json.dumps(rebalance(99).as_json()), key="other", partition=1)
    quick.send(topic, "{not json", '{"from": "the future"}', key="billing", partition=1)
    history = ("group", "history", "billing", "--history-topic", topic)

    shown = millpond.succeeds(*history, "--limit", "2")
    assert shown.lines[0] == "billing: the last 2 rebalances"
    assert [line.partition("  ")[2].split(",")[0] for line in shown.lines if "generation" in line] == [
        "generation 13",
        "generation 14",
    ]
    assert "  orders 0-3: bob-d933cb3f → alice-0b5c1f1e" in shown.lines

    printed = json.loads(millpond(*history, "--json").out)
    assert [each["generation"] for each in printed] == list(range(5, 15))
    since = json.loads(millpond(*history, "--json", "--since", "2023-11-14T22:25:00Z").out)
    assert [each["generation"] for each in since] == [12, 13, 14]

    nobody = millpond("group", "history", "nobody", "--history-topic", topic)
    assert (nobody.code, nobody.out) == (0, "")
    assert nobody.err.startswith("Group nobody has not rebalanced yet")


def test_the_history_of_a_member_that_came_and_died(millpond: Any, quick: Any, read_as: Callable[..., Any]) -> None:
    topic = quick.create("shared", 2)
    read_as("explained", topic, client_id="alice", session_timeout_ms=30_000, heartbeat_interval_ms=200)
    read_as("explained", topic, client_id="bob", session_timeout_ms=2000, heartbeat_interval_ms=200).kill()
    deadline = time.monotonic() + 60
    while len(printed := json.loads(millpond("group", "history", "explained", "--json").out)) < 3:
        assert time.monotonic() < deadline, printed
        time.sleep(0.2)
    assert [each["members"] for each in printed] == [1, 2, 1]
    shown = millpond("group", "history", "explained").out
    assert re.search(r"generation 2, 2 members, .* paused .*\n  bob-\w+ on 127.0.0.1: joined\n", shown), shown
    assert re.search(r"\n  shared \d: alice-\w+ → bob-\w+\n", shown), shown
    assert re.search(r"\n  bob-\w+ on 127.0.0.1: session timed out\n", shown), shown
    assert re.search(r"\n  shared \d: bob-\w+ → alice-\w+\n", shown), shown


def test_a_cluster_without_history_says_so(millpond: Any) -> None:
    explained = millpond("group", "history", "billing", "--history-topic", "not-there")
    assert (explained.code, explained.out) == (0, "")
    assert explained.err.startswith("This cluster has no history of rebalances")
    assert json.loads(millpond("group", "history", "billing", "--history-topic", "not-there", "--json").out) == []
