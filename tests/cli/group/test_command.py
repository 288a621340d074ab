"""Consumer groups from the command line, with real members in processes of their own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def commit(quick: Any, group: str, topic: str, *offsets: int) -> None:
    """The offset of each partition in turn, without a member."""
    partitions = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
    futures = quick.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)])
    futures[group].result(60)


def committed(quick: Any, group: str) -> dict[int, int]:
    futures = quick.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {each.partition: each.offset for each in futures[group].result(60).topic_partitions}


def described(millpond: Any, group: str, sample: str = "0") -> dict[str, Any]:
    group_facts = millpond.succeeds("group", "describe", group, "--json", "--sample", sample)
    (groups,) = json.loads(group_facts.out)
    assert isinstance(groups, dict)
    return groups


@pytest.mark.smoke
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_member(
    millpond: Any, quick: Any, read_as: Callable[..., Any], topic: str, protocol: str
) -> None:
    group = f"with-a-member-{protocol}"
    quick.send(topic, *map(str, range(50)))
    read_as(group, topic, 8, group_protocol=protocol, client_id="billing-app", group_instance_id="one")

    group_facts = described(millpond, group)
    assert (group_facts["state"], group_facts["type"], group_facts["lag"]) == ("stable", protocol, 42)
    (member,) = group_facts["members"]
    assert (member["client"], member["host"], member["instance"]) == ("billing-app", "127.0.0.1", "one")
    assert member["partitions"] == [{"topic": topic, "partition": 0}]
    (partition,) = group_facts["partitions"]
    facts = {name: partition[name] for name in ("member", "start", "end", "committed", "lag", "lost")}
    assert facts == {"member": member["id"], "start": 0, "end": 50, "committed": 8, "lag": 42, "lost": 0}

    shown = millpond("group", "describe", group, "--sample", "0")
    assert shown.lines[0].startswith(f"{group}: stable, 1 member, lag 42 records, ")
    assert f"{protocol} protocol" in shown.lines[1]
    assert shown.lines[-1].split()[:6] == ["#1", "0", "0", "8", "50", "42"]

    reset = millpond("group", "reset", group, "--topic", topic, "--to-earliest", "--yes")
    assert reset.code == 1
    assert reset.err == (
        f"millpond: Group {group} has 1 active member (one on 127.0.0.1): stop it first to reset it; "
        "a dead member leaves when its session times out.\n"
    )
    assert committed(quick, group) == {0: 8}
    millpond.fails("group", "delete", group, "--yes", error="stop it first to delete it")


def test_groups_are_listed_by_state_and_type(
    millpond: Any, quick: Any, read_as: Callable[..., Any], topic: str
) -> None:
    quick.send(topic, "a")
    commit(quick, "listed-empty", topic, 0)
    read_as("listed-new", topic, 1, group_protocol="consumer")

    def names(*options: str) -> set[str]:
        groups = json.loads(millpond("group", "list", "--json", *options).out)
        return {each["group"] for each in groups if each["group"].startswith("listed")}

    assert names() == {"listed-empty", "listed-new"}
    assert names("--state", "empty") == {"listed-empty"}
    assert names("--type", "consumer") == {"listed-new"}
    shown = millpond("group", "list")
    assert shown.lines[0].split() == ["Group", "Type", "State"]
    assert ["listed-new", "consumer", "stable"] in [line.split() for line in shown.lines]
    assert millpond("group", "list", "--state", "sleepy").code == 2


def test_a_topic_that_is_gone_does_not_hide_the_others(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, "a", "b")
    commit(quick, "half-gone", topic, 1)
    quick.create("soon-gone")
    commit(quick, "half-gone", "soon-gone", 0)
    quick.admin.delete_topics(["soon-gone"])["soon-gone"].result(60)
    assert described(millpond, "half-gone")["lag"] == 1


def test_watching_goes_on_until_it_is_stopped(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, "a", "b")
    commit(quick, "watched", topic, 0)
    watching = millpond.start("group", "describe", "watched", "--watch", "0.5", "--sample", "0.1", "--json")
    assert watching.stdout is not None
    lags = [json.loads(watching.stdout.readline())["groups"][0]["lag"]]
    commit(quick, "watched", topic, 2)
    while lags[-1] and len(lags) < 10:
        lags.append(json.loads(watching.stdout.readline())["groups"][0]["lag"])
    assert (lags[0], lags[-1]) == (2, 0)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 0


@pytest.mark.smoke
def test_a_dry_run_changes_nothing_and_a_reset_does_what_it_showed(millpond: Any, quick: Any) -> None:
    topic = quick.create("resets", 2)
    for index in (0, 1):
        quick.send(topic, *map(str, range(10)), partition=index)
    commit(quick, "resets", topic, 4, 4)

    dry = millpond.succeeds("group", "reset", "resets", "--topic", topic, "--to-offset", "7", "--dry-run")
    assert [line.split() for line in dry.lines[:3]] == [
        ["Topic", "Partition", "Before", "After", "Change"],
        [topic, "0", "4", "7", "+3"],
        [topic, "1", "4", "7", "+3"],
    ]
    assert dry.lines[-1] == "Nothing was changed: this was a dry run."
    assert committed(quick, "resets") == {0: 4, 1: 4}

    done = millpond("group", "reset", "resets", "--topic", f"{topic}:1", "--to-offset", "7", "--yes")
    assert done.lines[-1] == "Reset 1 partition of group resets."
    assert committed(quick, "resets") == {0: 4, 1: 7}

    back = millpond("group", "reset", "resets", "--topic", topic, "--shift", "-5", "--yes")
    assert f"{topic}-0: the log begins at 0, so -1 became 0." in back.lines
    assert committed(quick, "resets") == {0: 0, 1: 2}
    far = millpond("group", "reset", "resets", "--topic", topic, "--to-offset", "99", "--yes")
    assert f"{topic}-1: the log ends at 10, so 99 became 10." in far.lines
    assert committed(quick, "resets") == {0: 10, 1: 10}
    same = millpond("group", "reset", "resets", "--topic", topic, "--to-latest", "--yes")
    assert same.lines[-1] == "Nothing to change: the group is at these offsets already."


def test_a_confirmed_reset_applies_exactly_what_was_shown(in_terminal: Any, quick: Any, topic: str) -> None:
    quick.send(topic, *map(str, range(10)))
    commit(quick, "thinks", topic, 4)
    words = ("group", "reset", "thinks", "--topic", topic, "--to-latest")
    overtaken, agreed = in_terminal(*words), in_terminal(*words)
    for screen in (overtaken, agreed):
        screen.read_until("Reset group thinks?")
    quick.send(topic, "later")
    agreed.type("y\n")
    assert agreed.finish() == 0
    assert committed(quick, "thinks") == {0: 10}
    overtaken.type("y\n")
    assert overtaken.finish() == 1
    assert "The offsets have changed since the preview" in overtaken.text
    assert committed(quick, "thinks") == {0: 10}


def test_a_reset_to_a_time(millpond: Any, quick: Any, topic: str) -> None:
    for age in (3000, 2000, 1000):
        quick.send(topic, "x", timestamp=now_ms() - age * 1000)
    done = millpond("group", "reset", "timely", "--topic", topic, "--to-time", "25m ago", "--yes")
    assert done.lines[0] == "There is no group timely yet: it will be created with these offsets."
    assert committed(quick, "timely") == {0: 2}
    millpond.succeeds("group", "reset", "timely", "--topic", topic, "--to-time", "1m", "--yes")
    assert committed(quick, "timely") == {0: 3}


def test_resets_that_cannot_be(millpond: Any, quick: Any, topic: str) -> None:
    reset = ("group", "reset", "never-was")
    assert "give partitions as" in millpond(*reset, "--topic", f"{topic}:x", "--to-latest").err
    assert "has no partition 7" in millpond(*reset, "--topic", f"{topic}:7", "--to-latest").err
    assert "There is no topic zzzz" in millpond(*reset, "--topic", "zzzz", "--to-latest").err
    assert "nothing to shift from" in millpond(*reset, "--topic", topic, "--shift", "1").err
    millpond.fails(*reset, "--topic", topic, "--to-latest", code=2, error="add --yes to reset")
    assert committed(quick, "never-was") == {}


def test_deleting(millpond: Any, quick: Any, topic: str, in_terminal: Callable[..., Any]) -> None:
    commit(quick, "doomed", topic, 0)
    assert "add --yes to delete" in millpond("group", "delete", "doomed").err
    terminal = in_terminal("group", "delete", "doomed")
    terminal.read_until("[y/N]")
    terminal.type("y\r")
    terminal.read_until("Deleted doomed.")
    assert terminal.finish() == 0
    again = millpond("group", "delete", "doomed", "--yes")
    assert again.code == 1
    assert again.err.startswith("millpond: There is no group doomed")


def test_an_unknown_group_suggests_the_nearest_name(millpond: Any, quick: Any, topic: str) -> None:
    commit(quick, "shipping", topic, 0)
    group_facts = millpond("group", "describe", "shiping")
    assert (group_facts.code, group_facts.err) == (1, "millpond: There is no group shiping; did you mean shipping?\n")
    far = millpond("group", "describe", "qqqqqqqq")
    assert far.err == "millpond: There is no group qqqqqqqq; list them with `millpond group list`.\n"


def test_a_terminal_of_80_columns_holds_a_description(
    quick: Any, read_as: Callable[..., Any], topic: str, in_terminal: Callable[..., Any]
) -> None:
    quick.send(topic, *map(str, range(2000)))
    read_as("screen", topic, 3)
    screen = in_terminal("group", "describe", "screen", "--sample", "0")
    assert screen.finish() == 0
    assert "Traceback" not in screen.text
    row = next(line for line in screen.text.splitlines() if "1,997" in line and line.startswith("#1"))
    assert row.split()[:6] == ["#1", "0", "0", "3", "2,000", "1,997"]
