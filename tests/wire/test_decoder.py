from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import MalformedMessage


def test_unknown_tags_are_skipped(tagged: Any) -> None:
    data = b"\x09\3" + b"\0\2xx" + b"\1\4\0\0\0\5" + b"\x80\1\1x"
    assert tagged.decode(data, 1) == (tagged(plain=9, number=5), len(data))


@pytest.mark.parametrize("data", [b"\0\1\1\3\0\0\0\5", b"\0\1\1\5\0\0\0\5\0", b"\0\1\2\1\1\0"])
def test_a_tagged_field_must_be_as_long_as_it_says(data: bytes, tagged: Any) -> None:
    if data.endswith(b"\1\0"):
        assert tagged.decode(data, 1)[0] == tagged(items=[])
    else:
        with pytest.raises(MalformedMessage, match="number: ends at"):
            tagged.decode(data, 1)


def test_more_tagged_fields_than_could_be(tagged: Any) -> None:
    with pytest.raises(MalformedMessage, match="tags: announces 5, but only 3 bytes are left"):
        tagged.decode(b"\0\5\1\0\1", 1)


@pytest.mark.parametrize(
    "data",
    [
        # The message's own tags: unknown ones, and one that is known, again and again.
        b"\0\4" + b"\x09\0" * 4,
        b"\0\4" + b"\1\4\0\0\0\5" * 4,
        # Those of an item in a list.
        b"\0\1\2\x09\2\1\3" + b"\x09\0" * 3,
    ],
)
def test_tagged_fields_count_as_items(data: bytes, tagged: Any) -> None:
    tagged.decode(data, 1, 0, 5)
    with pytest.raises(MalformedMessage, match="more items"):
        tagged.decode(data, 1, 0, 3)


def test_records_are_decoded_as_views_of_the_buffer(with_records: Any) -> None:
    buffer = bytearray(b"\6first\7\7second\0")
    value, position = with_records.decode(buffer, 1)
    assert position == len(buffer)
    assert isinstance(value.first, memoryview)
    buffer[1:6] = b"FIRST"
    assert bytes(value.first) == b"FIRST"
    value.first.release()
    value.second.release()
