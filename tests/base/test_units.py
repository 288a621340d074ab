"""Amounts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.units import read_byte_rate, read_bytes, read_rate, show_bytes, show_number


@pytest.mark.parametrize(
    ("text", "count"),
    [("1KB", 1e3), ("1KiB", 1024), ("1 kb", 1e3), ("20TB", 2e13), ("1.5MiB", 1.5 * 2**20), ("400B", 400),
     ("512", 512), ("2k", 2e3), ("1,000,000 bytes", 1e6), ("1 byte", 1), (".5GB", 5e8), ("1PB", 1e15)],
)  # fmt: skip
def test_sizes(text: str, count: float) -> None:
    assert read_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "rate", "counts_bytes"),
    [("1GB/s", 1e9, True), ("10Gbit/s", 1.25e9, True), ("10MiB/sec", 10 * 2**20, True), ("100MBps", 1e8, True),
     ("100k/s", 1e5, False), ("1M", 1e6, False), ("1M msg/s", 1e6, False), ("7 messages/second", 7, False)],
)  # fmt: skip
def test_rates(text: str, rate: float, counts_bytes: bool) -> None:
    assert read_rate(text) == (rate, counts_bytes)


@pytest.mark.parametrize("text", ["", "KB", "-1KB", "1XB", "1KB/s", "one", "1 2", "1e9", "nan"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="not a size; write it like 1KB"):
        read_bytes(text)


@pytest.mark.parametrize("text", ["", "10", "10k/s", "10 apples/s", "MB/s"])
def test_what_is_no_data_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 10MB/s"):
        read_byte_rate(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 KB"), (86.4e12, "86.4 TB"), (604.8e12, "605 TB"),
     (1.8144e15, "1.81 PB"), (33.33e6, "33.3 MB"), (999_600, "1 MB"), (2.5e18, "2,500 PB")],
)  # fmt: skip
def test_sizes_have_three_significant_digits(count: float, text: str) -> None:
    assert show_bytes(count) == text


def test_numbers_keep_what_counts() -> None:
    assert [show_number(each) for each in (90.72, 6.4, 0.0123, 100, 1234.5, 1_000_000)] == [
        "90.7", "6.4", "0.0123", "100", "1,234", "1,000,000",
    ]  # fmt: skip


@given(st.floats(1, 1e17))
def test_what_is_shown_is_read_back_nearly_the_same(count: float) -> None:
    assert read_bytes(show_bytes(count)) == pytest.approx(count, rel=0.006)
