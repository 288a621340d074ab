"""Kafka's own tool describes, raises and lowers feature levels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millpond.testing import Ponds, ponds
from support.kafka_tools import kafka_tool, try_tool
from support.patience import with_time

pytestmark = with_time

TOOL = "org.apache.kafka.tools.FeatureCommand"


@pytest.fixture(scope="module")
def tool() -> list[str]:
    return kafka_tool(TOOL)


@pytest.fixture(scope="module")
def cluster(tool: list[str]) -> Iterator[Ponds]:
    with ponds(nodes=3) as made:
        yield made


def levels(tool: list[str], cluster: Ponds) -> dict[str, str]:
    code, told = try_tool(tool, cluster, "describe")
    assert code == 0, told
    lines = [line.split() for line in told.splitlines() if line.startswith("Feature:")]
    return {words[1]: words[words.index("FinalizedVersionLevel:") + 1] for words in lines}


def test_levels_are_told_lowered_and_raised(tool: list[str], cluster: Ponds) -> None:
    told = levels(tool, cluster)
    assert told["metadata.version"] == "4.1-IV1"
    assert (told["group.version"], told["transaction.version"]) == ("1", "2")
    code, why = try_tool(tool, cluster, "upgrade", "--feature", "metadata.version=25")
    assert code == 1
    assert "metadata.version is at 27: to lower it to 25, request a downgrade" in why
    code, why = try_tool(tool, cluster, "downgrade", "--metadata", "4.0-IV3", "--dry-run")
    assert code == 0, why
    assert levels(tool, cluster)["metadata.version"] == "4.1-IV1"
    code, why = try_tool(tool, cluster, "downgrade", "--metadata", "4.0-IV3")
    assert code == 0, why
    assert levels(tool, cluster)["metadata.version"] == "4.0-IV3"
    code, why = try_tool(tool, cluster, "upgrade", "--feature", "metadata.version=27", "--feature", "group.version=1")
    assert code == 0, why
    assert levels(tool, cluster)["metadata.version"] == "4.1-IV1"


def test_what_gives_something_up_must_be_called_unsafe(tool: list[str], cluster: Ponds) -> None:
    code, why = try_tool(tool, cluster, "downgrade", "--feature", "group.version=0")
    assert code == 1
    assert "group.version 0 is not safe" in why
    code, why = try_tool(tool, cluster, "downgrade", "--unsafe", "--feature", "group.version=0")
    assert code == 0, why
    assert "group.version" not in {name for name, level in levels(tool, cluster).items() if level != "0"}
    code, why = try_tool(tool, cluster, "upgrade", "--feature", "group.version=1")
    assert code == 0, why
    assert levels(tool, cluster)["group.version"] == "1"


def test_a_release_is_taken_for_the_levels_that_it_has(tool: list[str], cluster: Ponds) -> None:
    code, why = try_tool(tool, cluster, "downgrade", "--metadata", "4.0-IV3")
    assert code == 0, why
    code, why = try_tool(tool, cluster, "upgrade", "--release-version", "4.0")
    assert code == 0, why
    assert levels(tool, cluster)["kraft.version"] == "1"
    code, why = try_tool(tool, cluster, "downgrade", "--unsafe", "--feature", "kraft.version=0")
    assert code == 1
    assert "kraft.version is at 1 and cannot be lowered" in why
