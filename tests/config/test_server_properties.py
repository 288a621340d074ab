"""Kafka's `server.properties`: how it is read, what is taken over, and what is said of the rest."""

from __future__ import annotations

import pytest

from millpond.base.settings import SettingError
from millpond.config.node import NODE
from millpond.config.server_properties import (
    _FAMILIES,
    _SINGLE,
    BadLine,
    Property,
    meaningless,
    properties,
    translated,
)


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# one\n! two\n\n a.b = 1 \nc.d: x=y\nlisteners=A://:1,\\\n   B://:2\nempty=\nlast=1\\"
    assert list(properties(text)) == [
        Property(4, "a.b", "1"),
        Property(5, "c.d", "x=y"),
        Property(6, "listeners", "A://:1,B://:2"),
        Property(8, "empty", ""),
        Property(9, "last", "1"),
    ]


@pytest.mark.parametrize("text", ["a=1\nword\n", "a=1\n=2\n"])
def test_a_line_that_is_no_assignment_is_named(text: str) -> None:
    with pytest.raises(BadLine) as caught:
        list(properties(text))
    assert caught.value.line == 2


def test_other_names_of_our_settings_are_taken_over() -> None:
    ours, without_effect = translated({"broker.id": "3", "log.dirs": "/data", "num.partitions": "2"})
    assert ours == {"node.id": "3", "data.folder": "/data", "num.partitions": "2"}
    assert not without_effect


def test_the_newer_name_wins_over_the_older() -> None:
    ours, _ = translated({"broker.id": "3", "node.id": "4", "log.dir": "/old", "log.dirs": "/new"})
    assert ours == {"node.id": "4", "data.folder": "/new"}


def test_several_folders_are_refused() -> None:
    with pytest.raises(SettingError, match="name only one"):
        translated({"log.dirs": "/a,/b"})


def test_what_has_no_meaning_here_is_told_with_the_reason() -> None:
    names = ["num.io.threads", "zookeeper.connect", "group.share.max.groups", "principal.builder.class"]
    ours, without_effect = translated({**dict.fromkeys(names, "1"), "broker.id": "-1", "metadata.log.dir": "/m"})
    assert not ours
    assert without_effect.keys() == {*names, "broker.id", "metadata.log.dir"}
    assert all(why.startswith("Without effect: ") for why in without_effect.values())


@pytest.mark.parametrize("name", ["num.partitons", "retention.ms", "log.retention.weeks"])
def test_a_name_that_kafka_does_not_know_is_kept_to_be_refused(name: str) -> None:
    assert translated({name: "1"}) == ({name: "1"}, {})


def test_no_setting_of_ours_is_called_meaningless() -> None:
    assert not [setting.name for setting in NODE if meaningless(setting.name)]
    assert not [name for name in _SINGLE if name in NODE]
    assert not [prefix for prefix in _FAMILIES if prefix.rstrip(".") in NODE]
