"""JSON values by schema, and the reasons of bad ones."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from millpond.columns.errors import Fault
from millpond.columns.json_rows import epoch_microseconds, row_reader
from millpond.columns.schemas import read_schema


def read(kind: str, json: str | bytes) -> Any:
    """The field `v` of this type."""
    value = json if isinstance(json, bytes) else f'{{"v":{json}}}'.encode()
    return row_reader(read_schema(f"v {kind}"))(value).get("v")


def micros(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "json", "expected"),
    [
        ("byte", "-128", -128),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "1", 1.0),
        ("double", "0.1", 0.1),
        ("double", '"Infinity"', math.inf),
        ("double", "-Infinity", -math.inf),
        ("boolean", "true", True),
        ("string", '"é\\u00e9\\ud83d\\ude00"', "éé😀"),
        ("string", "12.50", "12.50"),
        ("string", "true", "true"),
        ("string", '{"a":[1,null,"é"]}', '{"a":[1,null,"é"]}'),
        ("binary", '"aGk="', b"hi"),
        ("decimal(10,2)", "12.5", Decimal("12.50")),
        ("decimal(10,2)", '"12.5"', Decimal("12.50")),
        ("decimal(10,2)", "7", Decimal("7.00")),
        ("decimal(10,2)", "1e3", Decimal("1000.00")),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("date", '"1970-01-02"', 1),
        ("date", '"1969-12-31"', -1),
        ("array<int>", "[1,null]", [1, None]),
        ("map<string,int>", '{"a":1,"b":null}', [("a", 1), ("b", None)]),
        ("struct<x:int,y:int>", '{"x":1,"z":2}', {"x": 1}),
        ("int", "null", None),
        ("timestamp", '"2024-01-02T03:04:05Z"', micros(2024, 1, 2, 3, 4, 5)),
        ("timestamp", '"2024-01-02 03:04:05"', micros(2024, 1, 2, 3, 4, 5)),
        ("timestamp", '"2024-01-02T03:04:05.25+02:00"', micros(2024, 1, 2, 1, 4, 5) + 250_000),
        ("timestamp", '"2024-01-02T03:04:05.123456789Z"', micros(2024, 1, 2, 3, 4, 5) + 123_456),
        ("timestamp", '"2024-01-02"', micros(2024, 1, 2)),
        ("timestamp", '"2024-01-02T03"', micros(2024, 1, 2, 3)),
        ("timestamp_ntz", '"2024-01-02T03:04:05"', micros(2024, 1, 2, 3, 4, 5)),
        ("timestamp", "1700000000", 1_700_000_000_000_000),
        ("timestamp", "1700000000.5", 1_700_000_000_500_000),
        ("timestamp", "1700000000123", 1_700_000_000_123_000),
        ("timestamp", "1700000000123456", 1_700_000_000_123_456),
        ("timestamp", "1700000000123456789", 1_700_000_000_123_456),
        ("timestamp", "-1", -1_000_000),
    ],
)
def test_values(kind: str, json: str, expected: Any) -> None:
    assert read(kind, json) == expected


def test_the_last_of_two_fields_counts_and_nan_is_a_double() -> None:
    assert read("int", b'{"v":1,"v":2}') == 2
    assert math.isnan(read("double", "NaN"))


@pytest.mark.parametrize(
    ("kind", "json", "message"),
    [
        ("int", b"", "not JSON: the value is empty"),
        ("int", b" \n", "not JSON: the value is empty"),
        ("int", b"order 17", "not JSON: Expecting value at character 1"),
        ("int", b'{"v":1', "not JSON: Expecting ',' delimiter at character 7"),
        ("int", b'{"v":1}}', "not JSON: Extra data at character 8"),
        ("int", b"[1]", "an object was expected, not an array"),
        ("int", b"null", "an object was expected, not null"),
        ("int", b'{"v":"\xff"}', "not UTF-8 text: byte 7 is 0xff"),
        ("int", b"\xef\xbb\xbf{}", "not JSON"),
        ("int", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not readable: nested too deep"),
        ("int", b'{"x":' + b"9" * 10_000 + b"}", "not readable: "),
        ("int", '"1"', 'v: a whole number was expected, not "1"'),
        ("int", "1.0", "v: a whole number was expected, not 1.0"),
        ("int", "true", "v: a whole number was expected, not true"),
        ("int", "2147483648", "v: 2147483648 does not fit into 32 bits"),
        ("byte", "128", "v: 128 does not fit into 8 bits"),
        ("long", "1" + "0" * 1000, "v: a huge number does not fit into 64 bits"),
        ("double", '"1"', 'v: a number was expected, not "1"'),
        ("double", "1e400", "v: the number is too large"),
        ("double", "1" + "0" * 400, "v: the number is too large"),
        ("float", "1e39", "v: 1e+39 does not fit into 32 bits"),
        ("boolean", "0", "v: true or false was expected, not 0"),
        ("string", '"\\ud800"', "v: half of a surrogate pair is not text"),
        ("binary", '"a"', 'v: base64 text was expected, not "a"'),
        ("decimal(4,2)", "100", "v: 100 does not fit into decimal(4,2)"),
        ("decimal(4,2)", "1.001", "v: 1.001 does not fit into decimal(4,2)"),
        ("decimal(4,2)", '"x"', 'v: a decimal(4,2) was expected, not "x"'),
        ("decimal(4,2)", "1e999999999", "v: 1E+999999999 does not fit into decimal(4,2)"),
        ("decimal(4,2)", "NaN", "v: a decimal(4,2) was expected, not nan"),
        ("date", '"2024-02-30"', 'v: a date such as 2030-12-31 was expected, not "2024-02-30"'),
        ("date", "19000", "v: a date such as"),
        ("timestamp", '"yesterday"', 'v: a time such as 2030-12-31T23:59:59Z was expected, not "yesterday"'),
        ("timestamp", '"2024-13-01"', "v: a time such as"),
        ("timestamp", "9223372036854775808", "v: a time such as"),
        ("array<int>", "{}", "v: an array was expected, not an object"),
        ("array<int>", '[1,"x"]', 'v[]: a whole number was expected, not "x"'),
        ("map<string,int>", '{"a":"x"}', 'v{}: a whole number was expected, not "x"'),
        ("struct<x:int not null>", "{}", "v.x: a value is required and is missing"),
        ("int not null", "null", "v: a value is required and is null"),
        ("int not null", b"{}", "v: a value is required and is missing"),
        ("array<struct<x:int>>", '[{"x":1},{"x":[]}]', "v[].x: a whole number was expected, not an array"),
    ],
)
def test_a_bad_value_has_a_reason(kind: str, json: str | bytes, message: str) -> None:
    with pytest.raises(Fault) as caught:
        read(kind, json)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200


def test_a_large_value_is_truncated_in_the_reason() -> None:
    with pytest.raises(Fault) as caught:
        read("int", '"' + "x" * 10_000 + '"')
    assert len(str(caught.value)) < 200


def test_the_unit_of_a_time_is_recognized_by_its_size() -> None:
    assert epoch_microseconds(99_999_999_999) == 99_999_999_999_000_000
    assert epoch_microseconds(100_000_000_000) == 100_000_000_000_000
    assert epoch_microseconds(-(10**14)) == -(10**14)
    assert epoch_microseconds(-(10**17) - 1) == -(10**14)
