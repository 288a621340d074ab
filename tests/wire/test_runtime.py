from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.ports import FileRange
from millpond.wire import runtime
from millpond.wire.runtime import Bad, TooLong, joined, longer, open_tag, skip_tags, string_length, varint


def test_varints_by_hand() -> None:
    assert varint(0) == b"\0"
    assert varint(127) == b"\x7f"
    assert varint(128) == b"\x80\1"
    assert varint(300) == b"\xac\2"


@given(st.integers(128, (1 << 35) - 1))
def test_long_varints_come_back(value: int) -> None:
    data = varint(value)
    assert longer(memoryview(data), 1, data[0]) == (value, len(data))


def test_varints_without_an_end() -> None:
    with pytest.raises(Bad, match="more than 5 bytes"):
        longer(memoryview(b"\xff" * 9), 1, 0xFF)
    with pytest.raises(IndexError):
        longer(memoryview(b"\xff\xff"), 1, 0xFF)


def test_string_lengths_have_a_limit() -> None:
    assert string_length(32_768) == varint(32_768)
    with pytest.raises(TooLong):
        string_length(32_769)


def test_tags() -> None:
    data = memoryview(b"\5\2ab" + b"\x80\1\0" + b"rest")
    assert open_tag(data, 0, len(data)) == (5, 4, 2)
    assert open_tag(data, 4, len(data)) == (128, 7, 7)
    assert skip_tags(data, 0, len(data), 2, 10) == (7, 8)
    many = b"\1\0" * 200
    assert skip_tags(memoryview(b"\xc8\1" + many), 1, 402, 0xC8, 200) == (402, 0)
    with pytest.raises(Bad, match="more items"):
        skip_tags(memoryview(b"\xc8\1" + many), 1, 402, 0xC8, 199)


@pytest.mark.parametrize("data", [b"\5\3ab", b"\5\xff\xff\xff\xff\x0f"])
def test_tags_longer_than_what_is_left(data: bytes) -> None:
    with pytest.raises(Bad, match="bytes are left"):
        skip_tags(memoryview(data), 0, len(data), 1, 10)


def test_more_tags_than_could_be() -> None:
    with pytest.raises(Bad, match="announces 3, but only 4 bytes"):
        skip_tags(memoryview(b"\1\0\1\0"), 0, 4, 3, 10)


def test_packers_of_long_arrays_are_not_kept() -> None:
    arrays = runtime.Arrays("h")
    assert arrays[2].pack(1, 2) == b"\0\1\0\2"
    assert arrays[2] is arrays[2]
    assert arrays[1000].size == 2000
    assert set(arrays) == {2}


def test_file_ranges_cannot_be_joined() -> None:
    assert joined([b"a", bytearray(b"b"), memoryview(b"c")]) == b"abc"
    with pytest.raises(ValueError, match="in parts"):
        joined([b"a", FileRange(None, 0, 1)])  # type: ignore[arg-type]
