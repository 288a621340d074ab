"""Which offsets the options of a reset name."""

from __future__ import annotations

from typing import Any

import click
import pytest

from millpond.admin.offset_reset import Shift
from millpond.admin.offsets import At, Beginning, End, Since
from millpond.cli.group.reset import read_target

NOW_MS = 1_800_000_000_000
NONE: dict[str, Any] = {
    "to_earliest": False, "to_latest": False, "to_offset": None, "to_time": None, "shift": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("named", "target"),
    [
        ({"to_earliest": True}, Beginning()),
        ({"to_latest": True}, End()),
        ({"to_offset": 0}, At(0)),
        ({"to_time": "5m ago"}, Since(NOW_MS - 300_000)),
        ({"shift": -3}, Shift(-3)),
    ],
)
def test_each_option_names_a_target(named: dict[str, Any], target: object) -> None:
    assert read_target(**NONE | named, at_ms=NOW_MS) == target


@pytest.mark.parametrize(
    "named", [{}, {"to_earliest": True, "to_offset": 0}, {"shift": 0, "to_latest": True}, {"to_time": "teatime"}]
)
def test_none_two_or_an_unknown_one_is_refused(named: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError):
        read_target(**NONE | named, at_ms=NOW_MS)
