"""How the text of an option is read."""

from __future__ import annotations

import pytest

from millpond.spark.option import at_least, boolean, duration_ms, one_of, text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("15m", 900_000), ("10s", 10_000), ("500ms", 500), ("250", 250), ("2 h", 7_200_000), ("1D", 86_400_000)],
)
def test_a_duration_is_written_as_spark_writes_it(given: str, wanted: int) -> None:
    assert duration_ms(given) == wanted


@pytest.mark.parametrize("given", ["", "m", "-5s", "5 weeks", "1.5h", "9" * 30])
def test_what_is_no_duration(given: str) -> None:
    with pytest.raises(ValueError, match="500ms"):
        duration_ms(given)


def test_other_kinds() -> None:
    assert (boolean("TRUE"), boolean(" false ")) == (True, False)
    assert at_least(1)(" 7 ") == 7
    assert one_of("json", "avro")("JSON") == "json"
    assert text("  a b ") == "a b"


@pytest.mark.parametrize(
    ("parse", "given", "reason"),
    [
        (boolean, "yes", "true or false"),
        (at_least(1), "0", "at least 1"),
        (at_least(1), "1.5", "whole number"),
        (at_least(0), "", "whole number"),
        (one_of("json", "avro"), "xml", "json, avro"),
        (text, "  ", "empty"),
    ],
)
def test_a_refusal_says_what_is_right(parse, given: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=reason):
        parse(given)
