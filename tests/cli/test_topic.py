"""Topics from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.smoke
def test_a_topic_is_created_changed_and_deleted(millpond: Any, quick: Any) -> None:
    made = millpond("topic", "create", "life", "--partitions", "3", "--set", "retention.ms=5000")
    assert (made.code, made.out) == (0, "Created topic life with 3 partitions.\n")
    listed = {topic["name"]: topic for topic in json.loads(millpond("topic", "list", "--json").out)}
    assert listed["life"] == {"name": "life", "partitions": 3, "replicas": 1}

    quick.send("life", "a", "b", partition=1)
    (result,) = json.loads(millpond("topic", "describe", "life", "--json").out)
    assert [(each["start"], each["end"]) for each in result["partitions"]] == [(0, 0), (0, 2), (0, 0)]
    assert result["partitions"][1]["size_bytes"] > 0
    assert result["partitions"][1]["leader"] == 1
    assert result["partitions"][1]["replicas"] == result["partitions"][1]["in_sync"] == [1]
    assert result["settings"] == [{"name": "retention.ms", "value": "5000", "source": "topic"}]

    millpond.succeeds(
        "topic", "alter", "life", "--partitions", "4", "--set", "cleanup.policy=compact", "--unset", "retention.ms"
    )
    wrong = millpond("topic", "alter", "life", "--set", "retention.ms=1", "--unset", "cleanup.polcy")
    assert (wrong.code, wrong.out) == (1, "")
    assert "There is no setting of topics cleanup.polcy; did you mean cleanup.policy?" in wrong.err
    (result,) = json.loads(millpond("topic", "describe", "life", "--json").out)
    assert len(result["partitions"]) == 4
    assert result["settings"] == [{"name": "cleanup.policy", "value": "compact", "source": "topic"}]

    assert millpond("topic", "delete", "life", "--yes").out == "Deleted life.\n"
    names = {topic["name"] for topic in json.loads(millpond("topic", "list", "--json").out)}
    assert "life" not in names, "the topics of other tests may have the word in their names"


def test_a_description_is_a_plain_table_in_a_pipe(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, *map(str, range(1234)))
    result = millpond.succeeds("topic", "describe", topic)
    assert result.lines[0].startswith(f"{topic}: 1 partition, 1,234 offsets, ")
    assert result.lines[1].split() == ["Partition", "Leader", "Replicas", "In", "sync", "Start", "End", "Size"]
    assert result.lines[2].split()[:6] == ["0", "1", "1", "1", "0", "1234"]
    assert len(result.lines) == 3


def test_creating_an_existing_topic_fails_unless_allowed(millpond: Any, topic: str) -> None:
    again = millpond("topic", "create", topic)
    assert again.code == 1
    assert again.err.startswith(f"millpond: Topic {topic} exists already: ")
    millpond.succeeds("topic", "create", topic, "--if-not-exists")


def test_the_cluster_says_what_is_wrong_with_a_topic(millpond: Any, topic: str) -> None:
    assert "did you mean retention.ms?" in millpond("topic", "create", "x", "--set", "retention.m=1").err
    many = millpond("topic", "create", "x", "--replicas", "3")
    assert many.code == 1
    assert many.err.startswith("millpond: Topic x was not created: replication factor 3")
    millpond.fails("topic", "alter", topic, "--partitions", "1", "--set", "retention.ms=-7", error="retention.ms")
    assert millpond("topic", "alter", topic).code == 2


def test_an_unknown_topic_suggests_the_nearest_name(millpond: Any, quick: Any) -> None:
    quick.create("payments")
    for verb in (("describe",), ("alter", "--partitions", "2"), ("delete", "--yes")):
        result = millpond("topic", verb[0], "paymets", *verb[1:])
        assert result.code == 1
        assert result.err == "millpond: There is no topic paymets; did you mean payments?\n"
    assert millpond("topic", "describe", "zzz").err == (
        "millpond: There is no topic zzz; create it with `millpond topic create zzz`.\n"
    )


def test_deleting_asks_first(millpond: Any, topic: str, in_terminal: Callable[..., Any]) -> None:
    millpond.fails("topic", "delete", topic, code=2, error="add --yes")

    refused = in_terminal("topic", "delete", topic)
    refused.read_until("[y/N]")
    refused.type("n\r")
    assert refused.finish() == 130

    agreed = in_terminal("topic", "delete", topic)
    agreed.read_until("[y/N]")
    agreed.type("y\r")
    agreed.read_until(f"Deleted {topic}.")
    assert agreed.finish() == 0


@pytest.mark.smoke
def test_a_terminal_gets_a_table_of_80_columns(in_terminal: Callable[..., Any], topic: str) -> None:
    screen = in_terminal("topic", "describe", topic)
    assert screen.finish() == 0
    assert "In sync" in screen.text
    assert "──" in screen.text
    assert "Traceback" not in screen.text


def test_a_closed_port_fails_at_once(lonely: Any) -> None:
    result = lonely("topic", "list", "-b", "127.0.0.1:1")
    assert result.code == 1
    assert result.err == (
        "millpond: Nothing listens on 127.0.0.1:1: start a node with `millpond up`, "
        "or name another with --bootstrap.\n"
    )
    assert lonely("topic", "list", "-b", "127.0.0.1:x").code == 2


def test_the_client_library_takes_settings(millpond: Any) -> None:
    millpond.succeeds("topic", "list", "-X", "client.id=someone")
    millpond.fails("topic", "list", "-X", "no.such=1", code=2, error="no.such")
