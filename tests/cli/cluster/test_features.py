"""The levels of features, as they are shown and changed by hand."""

from __future__ import annotations

import json
from typing import Any


def levels(millpond: Any) -> dict[str, int]:
    features = json.loads(millpond("cluster", "features", "--json").out)
    return {each["name"]: each["final"] for each in features}


def test_levels_are_shown_lowered_and_raised(millpond: Any, node: Any) -> None:
    shown = millpond("cluster", "features")
    assert shown.lines[0].split() == ["Feature", "Final", "Supported"]
    assert shown.lines[1].split() == ["metadata.version", "27", "25", "to", "27"]
    assert "kraft.version 1 is raised automatically when needed: voters that can change." in shown.out
    assert max(map(len, shown.lines)) <= 80
    lowered = millpond("cluster", "downgrade", "metadata.version=25", "--yes")
    assert (lowered.code, levels(millpond)["metadata.version"]) == (0, 25)
    assert "To upgrade: millpond cluster upgrade" in millpond("cluster", "features").out
    tried = millpond("cluster", "upgrade", "--dry-run")
    assert "Nothing was changed." in tried.out
    assert levels(millpond)["metadata.version"] == 25
    raised = millpond("cluster", "upgrade", "--yes")
    assert (raised.code, levels(millpond)["metadata.version"]) == (0, 27)
    assert "metadata.version 27 brings: one record for all partitions that change alike." in raised.out
    assert "Every feature is at the newest level" in millpond("cluster", "upgrade").out


def test_what_cannot_be_is_refused_with_a_sentence(millpond: Any, node: Any) -> None:
    for words, why in (
        (("upgrade", "metadata.version=99"), "does not support metadata.version 99, but 25 to 27"),
        (("upgrade", "streams.version=1"), "unknown feature 'streams.version'"),
        (("upgrade", "metadata.version=new"), "a level is a number"),
        (("downgrade", "group.version=0"), "members with group.protocol=consumer are refused"),
        (("downgrade", "kraft.version=0", "--dry-run"), ""),
    ):
        result = millpond("cluster", *words, "--yes")
        assert bool(result.code) == bool(why), result
        assert why in " ".join(result.err.split())


def test_one_node_is_not_restarted_by_itself(millpond: Any, node: Any) -> None:
    millpond.fails("cluster", "restart", "--yes", error="The cluster has one node, so a restart interrupts service.")
