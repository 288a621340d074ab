"""`millpond top`: what it prints in a pipe, as JSON, and draws on a terminal."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from millpond.admin.cluster_rates import ClusterSample, RateWindow, TopicTotals
from millpond.admin.groups import Group, Member
from millpond.admin.health import DiskFacts, Health
from millpond.admin.lag import GroupLag, PartitionLag
from millpond.admin.nodes import ClusterFacts, NodeFacts
from millpond.cli.top.view import as_object, groups_table, headline, lines, nodes_table, topics_table


def sample(at: float, orders: int, committed: int) -> ClusterSample:
    """One node that is there and one that is not; a group that reads `orders`."""
    partition = PartitionLag("orders", 0, "m", 0, orders, committed, orders - committed, 0, 4_000, None, None)
    member = Member("m", None, "c", "h")
    lag = GroupLag(Group("billing", "stable", "classic", "range", "h:1", (member,)), (partition,))
    nodes = (
        NodeFacts(1, "h:9092", "", True, 2, 2, ()),
        NodeFacts(2, None, "", False, 0, 1, ()),
    )
    disk = DiskFacts(1, "/data", 1000, 250, False)
    health = Health(ClusterFacts("c-1", nodes, ()), (disk,), (lag,), 0, "")
    topics = {"orders": TopicTotals(2, orders, orders), "quiet\x1b[2J": TopicTotals(1, 5, 5)}
    return ClusterSample(at, health, topics)


@pytest.fixture
def window() -> RateWindow:
    printed = RateWindow(10.0)
    printed.add(sample(100.0, 1_000, 900))
    printed.add(sample(102.0, 3_000, 1_300))
    return printed


def test_rows_hold_rates_lag_and_trend(window: RateWindow) -> None:
    assert topics_table(window).rows[0] == ("orders", "2", "3,000", "1,000/s")
    assert topics_table(window).rows[1][0] == "quiet\\x1b[2J"
    assert groups_table(window).rows == [("billing", "stable", "1", "1,700", "+800/s", "4.0s", "200/s")]
    assert [row[2] for row in nodes_table(window).rows] == ["controller", "away"]
    assert nodes_table(window).rows[0][-1] == "25%"
    assert headline(window) == "1 of 2 nodes, 2 topics, 3 partitions; 1,000/s written, 1,700 records unread"
    assert any("Node 2 is down." in line for line in lines(window))


def test_the_object_has_the_same_in_plain_numbers(window: RateWindow) -> None:
    printed = json.loads(json.dumps(as_object(window)))
    assert (printed["written_per_second"], printed["lag"]) == (1000.0, 1700)
    assert printed["groups"][0]["read_per_second"] == 200.0
    assert printed["topics"][0] == {"topic": "orders", "partitions": 2, "offsets": 3000, "written_per_second": 1000.0}


def test_rates_are_those_of_the_window(window: RateWindow) -> None:
    for step in range(1, 11):
        window.add(sample(102.0 + step * 2, 3_000, 3_000))
    # Nothing was written for as long as is looked back.
    assert window.rates is not None
    assert window.rates.written_in_all == 0
    assert window.rates.lag_growth["billing"] == 0


def test_once_prints_plain_lines(millpond: Any, quick: Any) -> None:
    millpond("topic", "create", "top-lines", "--partitions", "2")
    looking = millpond.start("top", "--once", "--every", "2")
    # What is written to meanwhile comes first; other tests have made topics, too.
    while looking.poll() is None:
        quick.send("top-lines", "a", "b", "c")
        time.sleep(0.05)
    out, err = (each.decode() for each in looking.communicate(timeout=60))
    assert looking.returncode == 0, err
    assert "1 of 1 node" in out.splitlines()[0]
    (row,) = [line.split() for line in out.splitlines() if line.startswith("top-lines ")]
    assert row[:2] == ["top-lines", "2"]
    assert int(row[2].replace(",", "")) > 0
    assert "\x1b" not in out


def test_json_is_a_line_for_each_look(millpond: Any, node: Any) -> None:
    result = millpond("top", "--once", "--json", "--every", "0.5")
    (printed,) = result.objects
    assert printed["nodes"][0]["address"] == node.address
    assert printed["problems"] == [] or isinstance(printed["problems"][0], str)


def test_on_a_terminal_q_ends_it(in_terminal: Any, node: Any) -> None:
    screen = in_terminal("top", "--every", "0.5", "-b", node.address)
    screen.read_until("q ends")
    screen.type("q")
    assert screen.finish() == 0
    assert "\x1b[?1049l" in screen.text, "the screen of before is not back"


def test_a_closed_port_fails_at_once(lonely: Any) -> None:
    lonely.fails("top", "--once", "-b", "127.0.0.1:1", error="Nothing listens on 127.0.0.1:1")


def test_in_a_pipe_ctrl_c_is_a_good_end(millpond: Any, node: Any) -> None:
    running = millpond.start("top", "--every", "0.5")
    assert running.stdout is not None
    assert b"node" in running.stdout.readline()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 0
