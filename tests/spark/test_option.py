"""Parsing the text of an option."""

from __future__ import annotations

import pytest

from millpond.base.settings import SettingError, one_of
from millpond.spark.option import READS, Option

DELAY = Option("delay", 0, "A time.", is_duration=True, where=READS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("15m", 900_000), ("10s", 10_000), ("500ms", 500), ("250", 250), ("2 h", 7_200_000), ("1D", 86_400_000)],
)
def test_a_duration_is_written_as_spark_writes_it(given: str, expected: int) -> None:
    assert DELAY.parse(given) == expected


@pytest.mark.parametrize("given", ["", "m", "-5s", "5 weeks", "1.5h", "9" * 30])
def test_invalid_durations_are_refused_by_an_option(given: str) -> None:
    with pytest.raises(SettingError, match="500ms"):
        DELAY.parse(given)


def test_a_choice_is_case_insensitive_and_a_text_not_empty() -> None:
    option = Option("format", "raw", "A format.", one_of("raw", "json"), any_case=True, where=READS)
    assert option.parse(" JSON ") == "json"
    with pytest.raises(SettingError, match="format=xml: must be one of raw, json"):
        option.parse("xml")
    with pytest.raises(SettingError, match="format is empty"):
        option.parse("  ")
