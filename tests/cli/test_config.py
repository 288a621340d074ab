"""Settings from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import pytest

from millpond.config.topic import TOPIC


def test_a_setting_is_set_shown_and_unset(millpond: Any, topic: str) -> None:
    assert millpond("config", "set", "topic", topic, "retention.ms=5000").out == "retention.ms: 604800000 → 5000\n"
    assert millpond("config", "get", "topic", topic, "retention.ms", "--value").out == "5000\n"
    result = millpond("config", "get", "topic", topic, "retention.ms")
    assert result.lines[:2] == ["retention.ms = 5000", "  from: topic; unset it would be 604800000"]
    assert "Delete segments" in result.out
    listed = millpond("config", "list", "topic", topic)
    assert [line.split() for line in listed.lines] == [
        ["Setting", "Value", "From"],
        ["retention.ms", "5000", "topic"],
    ]
    millpond.succeeds("config", "unset", "topic", topic, "retention.ms")
    nothing = millpond("config", "list", "topic", topic)
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == f"Topic {topic} has only defaults: --all shows them.\n"
    assert len(millpond("config", "list", "topic", topic, "--all").lines) == 1 + len(list(TOPIC))


def test_what_cannot_be_is_refused_and_nothing_changes(millpond: Any, topic: str) -> None:
    wrong = millpond("config", "set", "topic", topic, "segment.bytes=20000", "retention.m=1")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err == "millpond: There is no setting of topics retention.m; did you mean retention.ms?\n"
    assert json.loads(millpond("config", "list", "topic", topic, "--json").out) == []
    assert millpond("config", "set", "topic", topic, "segment.bytes").code == 2
    assert "Give a node's number" in millpond("config", "list", "node", "first").err


def test_what_there_is_to_set_is_known_without_a_cluster(lonely: Any) -> None:
    result = lonely("config", "list", "topic", "--json")
    assert [each["name"] for each in json.loads(result.out)] == [each.name for each in TOPIC]
    assert all(each["meaning"] for each in json.loads(result.out))
    assert (
        lonely("config", "list", "group")
        .lines[0]
        .startswith("consumer.session.timeout.ms (whole number; default 45000")
    )


def test_values_for_scripts_are_as_they_are(millpond: Any, topic: str) -> None:
    millpond.succeeds("config", "set", "topic", topic, "leader.replication.throttled.replicas=")
    empty = millpond("config", "get", "topic", topic, "leader.replication.throttled.replicas", "--value")
    assert (empty.code, empty.out) == (0, "\n")
    result = millpond("config", "set", "topic", topic, "retention.ms=1", "retention.ms=2")
    assert (result.code, result.err.splitlines()[-1]) == (
        2,
        "Error: retention.ms is given twice.",
    )


def test_what_others_have_set_does_not_command_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from millpond.admin.settings import Change, SettingFacts
    from millpond.cli.config.command import _print_changes, _print_facts, _print_values

    evil = "\x1b]0;mine\x07\nnew line"
    facts = SettingFacts("a", evil, "topic", True, evil, False, "text", evil)
    _print_facts(facts)
    _print_changes([Change("a", evil, evil), Change("b", None, None, is_secret=True)], False, False)
    result = capsys.readouterr().out
    assert "\x1b" not in result
    assert "b: (hidden)" in result
    with pytest.raises(click.ClickException, match="a is a secret"):
        _print_values([facts, replace(facts, value=None, is_secret=True)])
