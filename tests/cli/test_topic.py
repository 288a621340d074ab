"""Topics from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.smoke
def test_the_life_of_a_topic(millpond: Any, quick: Any) -> None:
    made = millpond("topic", "create", "life", "--partitions", "3", "--set", "retention.ms=5000")
    assert (made.code, made.out) == (0, "Created topic life with 3 partitions.\n")
    listed = {topic["name"]: topic for topic in json.loads(millpond("topic", "list", "--json").out)}
    assert listed["life"] == {"name": "life", "partitions": 3, "replicas": 1}

    quick.send("life", "a", "b", partition=1)
    (told,) = json.loads(millpond("topic", "describe", "life", "--json").out)
    assert [(each["start"], each["end"]) for each in told["partitions"]] == [(0, 0), (0, 2), (0, 0)]
    assert told["partitions"][1]["size_bytes"] > 0
    assert told["partitions"][1]["leader"] == 1
    assert told["partitions"][1]["replicas"] == told["partitions"][1]["in_sync"] == [1]
    assert told["settings"] == [{"name": "retention.ms", "value": "5000", "source": "topic"}]

    changed = millpond(
        "topic", "alter", "life", "--partitions", "4", "--set", "cleanup.policy=compact", "--unset", "retention.ms"
    )
    assert changed.code == 0, changed.err
    wrong = millpond("topic", "alter", "life", "--set", "retention.ms=1", "--unset", "cleanup.polcy")
    assert (wrong.code, wrong.out) == (1, "")
    assert "There is no setting of topics cleanup.polcy; did you mean cleanup.policy?" in wrong.err
    (told,) = json.loads(millpond("topic", "describe", "life", "--json").out)
    assert len(told["partitions"]) == 4
    assert told["settings"] == [{"name": "cleanup.policy", "value": "compact", "source": "topic"}]

    assert millpond("topic", "delete", "life", "--yes").out == "Deleted life.\n"
    names = {topic["name"] for topic in json.loads(millpond("topic", "list", "--json").out)}
    assert "life" not in names, "the topics of other tests may have the word in their names"


def test_a_description_is_a_plain_table_in_a_pipe(millpond: Any, quick: Any, topic: str) -> None:
    quick.send(topic, *map(str, range(1234)))
    told = millpond("topic", "describe", topic)
    assert told.code == 0
    assert told.lines[0].startswith(f"{topic}: 1 partition, 1,234 offsets, ")
    assert told.lines[1].split() == ["Partition", "Leader", "Replicas", "In", "sync", "Start", "End", "Size"]
    assert told.lines[2].split()[:6] == ["0", "1", "1", "1", "0", "1234"]
    assert len(told.lines) == 3


def test_a_topic_that_is_there_is_told_unless_that_is_fine(millpond: Any, topic: str) -> None:
    again = millpond("topic", "create", topic)
    assert again.code == 1
    assert again.err.startswith(f"millpond: Topic {topic} exists already: ")
    assert millpond("topic", "create", topic, "--if-not-exists").code == 0


def test_the_cluster_says_what_is_wrong_with_a_topic(millpond: Any, topic: str) -> None:
    assert "did you mean retention.ms?" in millpond("topic", "create", "x", "--set", "retention.m=1").err
    many = millpond("topic", "create", "x", "--replicas", "3")
    assert many.code == 1
    assert many.err.startswith("millpond: Topic x was not created: replication factor 3")
    fewer = millpond("topic", "alter", topic, "--partitions", "1", "--set", "retention.ms=-7")
    assert fewer.code == 1
    assert "retention.ms" in fewer.err
    assert millpond("topic", "alter", topic).code == 2


def test_an_unknown_topic_is_told_with_the_nearest_name(millpond: Any, quick: Any) -> None:
    quick.create("payments")
    for verb in (("describe",), ("alter", "--partitions", "2"), ("delete", "--yes")):
        told = millpond("topic", verb[0], "paymets", *verb[1:])
        assert told.code == 1
        assert told.err == "millpond: There is no topic paymets; did you mean payments?\n"
    assert millpond("topic", "describe", "zzz").err == (
        "millpond: There is no topic zzz; create it with `millpond topic create zzz`.\n"
    )


def test_deleting_asks_first(millpond: Any, topic: str, in_terminal: Callable[..., Any]) -> None:
    nobody = millpond("topic", "delete", topic)
    assert nobody.code == 2
    assert "add --yes" in nobody.err

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


def test_nobody_there_is_told_at_once(lonely: Any) -> None:
    told = lonely("topic", "list", "-b", "127.0.0.1:1")
    assert told.code == 1
    assert told.err == (
        "millpond: Nothing listens on 127.0.0.1:1: start a node with `millpond up`, "
        "or name another with --bootstrap.\n"
    )
    assert lonely("topic", "list", "-b", "127.0.0.1:x").code == 2


def test_the_client_library_takes_settings(millpond: Any) -> None:
    assert millpond("topic", "list", "-X", "client.id=someone").code == 0
    wrong = millpond("topic", "list", "-X", "no.such=1")
    assert wrong.code == 2
    assert "no.such" in wrong.err
