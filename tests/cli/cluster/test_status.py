"""The table of a cluster's nodes."""

from __future__ import annotations

from typing import Any

from millpond.admin.nodes import ClusterFacts, NodeFacts
from millpond.base.ids import TopicPartition
from millpond.cli.cluster.view import Lines, row, warnings


def test_a_node_alone_leads_everything(millpond: Any, node: Any, topic: str) -> None:
    result = millpond.succeeds("cluster", "status")
    assert result.lines[0].split() == ["Node", "Address", "State", "Leads", "In", "sync", "Behind"]
    words = result.lines[1].split()
    assert words[:4] == ["1", node.address, "ready,", "controller"]
    [facts] = millpond("cluster", "status", "--json").objects
    [only] = facts["nodes"]
    assert only["leads"] == only["replicas"] == int(words[4]) + only["internal"]["leads"] > 0
    of_status = millpond("status").lines[1].split()
    assert words[4:8] == of_status[3:7], "both leave out what is internal"
    assert only["behind"] == facts["leaderless"] == []


def facts(**of_two: Any) -> ClusterFacts:
    one = NodeFacts(1, "a:9092", "", True, 4, 4, ())
    two = NodeFacts(
        2, **{"address": "b:9092", "rack": "", "is_controller": False, "leads": 0, "replicas": 4, **of_two}
    )
    return ClusterFacts("c", (one, two), ())


def test_replicas_behind_and_offline_nodes_are_shown() -> None:
    behind = tuple(TopicPartition("orders", index) for index in range(4))
    cluster = facts(behind=behind, address=None)
    assert row(cluster.nodes[0]) == ("1", "a:9092", "ready, controller", "4", "4 of 4", "–")
    assert row(cluster.nodes[1]) == ("2", "–", "away", "0", "0 of 4", "orders-0, orders-1, orders-2 and 1 more")
    assert row(cluster.nodes[0], "ended")[2] == "ended"
    assert row(cluster.nodes[0], pid=4711)[2] == "ready, controller, pid 4711"


def test_leaderless_partitions_are_warned_of() -> None:
    leaderless = ClusterFacts("c", (), (TopicPartition("orders", 1),))
    assert list(warnings(leaderless)) == ["without a leader: orders-1"]
    assert list(warnings(facts(behind=()))) == []


def test_in_a_pipe_only_changes_are_printed(capsys: Any) -> None:
    lines = Lines()
    before = [row(node) for node in facts(behind=()).nodes]
    after = [row(node) for node in facts(behind=(TopicPartition("orders", 0),)).nodes]
    for rows, notes in (
        (before, []),
        (before, []),
        (after, ["without a leader: x-0"]),
        (after, ["without a leader: x-0"]),
    ):
        lines.show(rows, notes)
    printed = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        "node 1  ready, controller: leads 4, in sync 4 of 4",
        "node 2  ready: leads 0, in sync 4 of 4",
        "node 2  ready: leads 0, in sync 3 of 4, behind with orders-0",
        "without a leader: x-0",
    ]
