"""Values of settings as people write them."""

from __future__ import annotations

import pytest

from millpond.cli.options import setting_value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "1h30m", "5400000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "86400000", "86400000"),
        ("retention.ms", "soon", "soon"),
        ("retention.ms", "", ""),
        ("segment.bytes", "64MiB", "67108864"),
        ("segment.bytes", "much", "much"),
        ("cleanup.policy", "7d", "7d"),
    ],
)
def test_spans_and_sizes_become_numbers(name: str, text: str, value: str) -> None:
    assert setting_value(name, text) == value
