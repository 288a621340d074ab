"""Moments and points in a topic as people write them."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.offsets import At, Beginning, End, Last, Since
from millpond.base.spans import read_span, read_time
from millpond.cli.consume import point_of
from millpond.cli.times import show_span, show_time

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("beginning", Beginning()),
        ("Earliest", Beginning()),
        ("end", End()),
        ("0", At(0)),
        ("1200", At(1200)),
        ("-10", Last(10)),
        ("5m", Since(NOW_MS - 300_000)),
        ("5m ago", Since(NOW_MS - 300_000)),
        ("1h30m ago", Since(NOW_MS - 5_400_000)),
        ("2 days ago", Since(NOW_MS - 172_800_000)),
        ("1.5 hours", Since(NOW_MS - 5_400_000)),
        ("2026-01-31T08:30:00.125Z", Since(1_769_848_200_125)),
        ("2026-01-31T09:30:00+01:00", Since(1_769_848_200_000)),
    ],
)
def test_a_place_is_read(text: str, point: object) -> None:
    assert point_of(text, NOW_MS) == point


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs ago", "ago", "--5", "1e5", "2026-13-01", "٣"])
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="--from"):
        point_of(text, NOW_MS)


def test_a_span_is_no_span_without_a_unit() -> None:
    assert read_span("5") is None
    assert read_span("") is None
    assert read_span("250ms") == 250


@given(st.integers(0, 253_402_300_799_999))
def test_what_is_shown_can_be_read(time_ms: int) -> None:
    assert read_time(show_time(time_ms), NOW_MS) == time_ms


def test_times_that_are_none_are_still_shown() -> None:
    assert show_time(-1) == "-"
    assert show_time(1 << 62) == str(1 << 62)


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0ms"),
        (999.6, "1.0s"),
        (340, "340ms"),
        (1240, "1.2s"),
        (9_949, "9.9s"),
        (9_950, "10s"),
        (59_600, "1m"),
        (134_000, "2m 14s"),
        (3_599_600, "1h"),
        (11_100_000, "3h 5m"),
        (86_400_000, "1d"),
        (187_200_000, "2d 4h"),
    ],
)
def test_a_length_of_time_has_its_two_largest_units(span_ms: float, text: str) -> None:
    assert show_span(span_ms) == text


@given(st.integers(0, 10**11))
def test_a_shown_length_of_time_is_read_as_nearly_the_same(span_ms: int) -> None:
    read = read_span(show_span(span_ms))
    assert read is not None
    assert abs(read - span_ms) <= max(100, span_ms / 20)
