"""What is shown of a record: never more than was allowed, and it says when something is missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.excerpts import NAME_SIGNS_MAX, Extent, cut, cut_headers, cut_record, cut_text
from millpond.wire.records import Record

SMALL = Extent(data_bytes=10, headers=3, headers_bytes=30)
HEADERS = st.lists(st.tuples(st.text(max_size=400), st.none() | st.binary(max_size=40)), max_size=6)


@given(HEADERS)
def test_headers_are_limited_and_marked_when_cut(headers: list[tuple[str, bytes | None]]) -> None:
    excerpt = cut_headers(headers, SMALL)
    assert len(excerpt.shown) <= SMALL.headers
    assert sum(len(part.data) for _, part in excerpt.shown if part) <= SMALL.headers_bytes
    assert all(len(name) <= NAME_SIGNS_MAX for name, _ in excerpt.shown)
    whole = [(name, None if part is None else part.data) for name, part in excerpt.shown]
    assert excerpt.is_cut == (whole != headers)


@pytest.mark.parametrize("size", [9, 10, 11, 12])
def test_a_value_that_is_cut_says_so(size: int) -> None:
    shown = cut_record(0, Record(5, 7, None, b"x" * size), SMALL)
    assert (shown.offset, shown.timestamp_ms, shown.key) == (5, 7, None)
    assert shown.value == cut(b"x" * size, 10)
    assert shown.is_cut == (size > 10)


def test_a_header_that_is_left_out_makes_the_record_a_part() -> None:
    shown = cut_record(0, Record(0, 0, b"k", b"v", tuple((f"h{number}", b"") for number in range(4))), SMALL)
    assert (len(shown.headers), shown.headers_total, shown.is_cut) == (3, 4, True)


def test_a_text_that_is_cut_ends_with_a_sign_for_it() -> None:
    assert cut_text("abcd", 4) == "abcd"
    assert cut_text("abcde", 4) == "abc…"
