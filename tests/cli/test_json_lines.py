"""Records as lines of JSON lose nothing, and a line that is no record is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cli.json_lines import NotARecord, NotParsed, Outgoing, dump, load, parsed_json

some_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
some_headers = st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=4)
int64 = st.integers(0, (1 << 63) - 1)


@given(st.integers(0, 1000), int64, int64, some_bytes, some_bytes, some_headers)
def test_what_is_printed_can_be_sent(
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> None:
    line = dump(partition, offset, timestamp_ms, key, value, headers)
    assert line.count(b"\n") == 1
    assert load(line) == Outgoing(value, key, headers, partition, timestamp_ms)


def test_bytes_that_are_no_text_are_marked() -> None:
    line = json.loads(dump(0, 1, 2, b"\xff", "tea ☕".encode(), [("a", b"1"), ("a", None)]))
    assert line["key"] == {"$base64": "/w=="}
    assert line["value"] == "tea ☕"
    assert line["headers"] == [["a", "1"], ["a", None]]


def test_a_value_may_be_any_json() -> None:
    assert load(b'{"value": {"cups": 2}}').value == b'{"cups":2}'
    assert load(b'{"value": 7, "key": true}') == Outgoing(b"7", b"true")
    assert load(b"{}") == Outgoing(None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"tea", "not JSON"),
        (b'"tea"', "a record must be an object"),
        (b'{"valu": 1}', "unknown field valu"),
        (b'{"value": {"$base64": "?"}}', "does not hold base64"),
        (b'{"partition": -1}', "partition must be a whole number"),
        (b'{"timestamp": true}', "timestamp must be a whole number"),
        (b'{"headers": ["a"]}', "headers are an object or a list"),
        (b'{"value": "\\ud800"}', "surrogate"),
    ],
)
def test_an_invalid_line_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(NotARecord, match=message.replace("$", r"\$")):
        load(line)


def test_json_stays_as_it_was_written_on_one_line() -> None:
    written = '{\n  "n": 1.10,\r\n\t"n": 12345678901234567890,\n  "text": "a\\nb  c"\n}\n'
    parsed = parsed_json(written.encode())
    assert parsed == '{ "n": 1.10, "n": 12345678901234567890, "text": "a\\nb  c" }'
    line = dump(0, 1, 2, None, written.encode(), [], parsed=parsed)
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == json.loads(written)


@pytest.mark.parametrize("data", [b"", b"tea", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000, b'"\x01"'])
def test_invalid_json_is_refused(data: bytes) -> None:
    with pytest.raises(NotParsed, match="not JSON"):
        parsed_json(data)


def test_hexadecimal_digits_are_read() -> None:
    assert load(b'{"value": {"$hex": "00ff"}}') == Outgoing(b"\x00\xff")
    with pytest.raises(NotARecord, match="hexadecimal"):
        load(b'{"value": {"$hex": "0g"}}')
