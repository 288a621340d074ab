"""The parser: rows and reasons for any mixture of values."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.columns import parser as parser_module
from millpond.columns.errors import SchemaError
from millpond.columns.parser import Parsed, Parser
from millpond.wire import kernel
from millpond.wire.kernel.values import VALUE_BYTES_MAX

DDL = "id long, customer string, amount double, at timestamp, items array<struct<sku:string,n:int>>"


@pytest.fixture(
    scope="module",
    autouse=True,
    params=[
        "plain",
        pytest.param("compiled", marks=pytest.mark.skipif(not kernel.COMPILED, reason="the kernel was not built")),
    ],
)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with the compiled reader and without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "COMPILED", request.param == "compiled")
        assert Parser("json", DDL).is_compiled is (request.param == "compiled")
        yield


def order(number: int, **more: Any) -> bytes:
    items = [{"sku": "A-100", "n": 2}, {"sku": "B-200", "n": 1}]
    fields = {"id": number, "customer": f"c-{number % 7}", "amount": number / 7, "at": "2024-01-02T03:04:05.123Z"}
    return json.dumps(fields | {"items": items} | more).encode()


def parse(values: list[bytes | None], parser: Parser) -> Parsed:
    result = parser.parse(pa.array(values, pa.binary()))
    result.rows.validate(full=True)
    assert result.rows.type == parser.arrow_type
    assert len(result.rows) == len(values)
    return result


class ReadCounter:
    """Counts the rows that are read one by one."""

    def __init__(self, parser: Parser) -> None:
        self.rows = 0
        self._read = parser._read_row
        parser._read_row = self  # type: ignore[method-assign]

    def __call__(self, value: bytes) -> dict[str, Any]:
        self.rows += 1
        return self._read(value)


def test_good_rows_keep_their_order_and_tombstones_are_null() -> None:
    parser = Parser("json", DDL)
    counter = ReadCounter(parser)
    values = [None if number % 10 == 3 else order(number) for number in range(1000)]
    result = parse(values, parser)
    assert not result.faults
    assert counter.rows == (0 if parser.is_compiled else 900)
    assert [row and row["id"] for row in result.rows.to_pylist()] == [
        None if number % 10 == 3 else number for number in range(1000)
    ]


def test_bad_rows_are_found_among_good_ones() -> None:
    parser = Parser("json", DDL)
    counter = ReadCounter(parser)
    bad = {0: b"", 17: b'{"id":"x"}', 500: b"\xff", 501: b'{"at":"never"}', 998: b"{}{}", 999: b"nope"}
    values: list[bytes | None] = [bad.get(number, order(number)) for number in range(1000)]
    values[400] = None
    result = parse(values, parser)
    assert dict(result.faults).keys() == bad.keys()
    assert [row for row, _ in result.faults] == sorted(bad)
    ids = [row and row["id"] for row in result.rows.to_pylist()]
    assert ids == [None if number in bad or number == 400 else number for number in range(1000)]
    assert counter.rows == (len(bad) if parser.is_compiled else 999)


def test_values_in_slices_of_larger_arrays() -> None:
    parser = Parser("json", DDL)
    values = pa.array([order(number) for number in range(300)], pa.binary()).slice(50, 200)
    assert [row["id"] for row in parser.parse(values).rows.to_pylist()] == list(range(50, 250))
    assert parser.parse(values.slice(0, 0)).rows.to_pylist() == []
    assert parser.parse(pa.nulls(3, pa.binary())).rows.null_count == 3


def test_times_as_numbers() -> None:
    result = parse([order(number, at=1_700_000_000_000 + number) for number in range(100)], Parser("json", DDL))
    assert result.rows[5].as_py()["at"].timestamp() == 1_700_000_000.005


def test_maps_and_binary() -> None:
    parser = Parser("json", "m map<string,array<int>>, b binary")
    count = 2 * parser_module.ROWS_MAX + 1
    result = parse([b'{"m":{"a":[1],"b":null},"b":"aGk="}', b'{"m":[]}'] * (count // 2) + [b"{}"], parser)
    assert result.rows[0].as_py() == {"m": [("a", [1]), ("b", None)], "b": b"hi"}
    assert result.rows[count - 1].as_py() == {"m": None, "b": None}
    assert result.faults[0] == (1, "m: an object was expected, not an array")
    assert len(result.faults) == count // 2


def test_a_value_that_is_too_long_is_bad_whether_alone_or_not() -> None:
    parser = Parser("json", "s string")
    long = b'{"s":"' + b"x" * VALUE_BYTES_MAX + b'"}'
    message = f"the value has {len(long):,} bytes; at most 16,777,216 are read"
    assert parse([long], parser).faults == [(0, message)]
    assert parse([b"{}"] * 40 + [long], parser).faults == [(40, message)]


@pytest.mark.parametrize(
    "unknown",
    [b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"9" * 10_000],
    ids=["arrays", "objects", "digits"],
)
def test_a_value_that_is_too_deep_or_has_endless_digits_is_bad_whether_alone_or_not(unknown: bytes) -> None:
    parser = Parser("json", DDL)
    value = order(7)[:-1] + b',"unknown":' + unknown + b"}"
    (fault,) = parse([value], parser).faults
    assert fault[1].startswith("not readable: ")
    result = parse([order(1), value, order(2)], parser)
    assert result.faults == [(1, fault[1])]
    assert result.rows.flatten()[0].to_pylist() == [1, None, 2]


@pytest.mark.parametrize(
    "bad", [b'{"id":"x"}', b"", b'{"id":99999999999999999999}', b"\0" * 100], ids=["type", "empty", "range", "zeros"]
)
def test_a_batch_of_bad_values_takes_linear_time(bad: bytes) -> None:
    parser = Parser("json", DDL)
    counter = ReadCounter(parser)
    began = time.process_time()
    result = parse([bad] * 10_000, parser)
    assert len(result.faults) == 10_000
    assert counter.rows == 10_000
    assert time.process_time() - began < 20


NOISE = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"{}", b"{}{}", b'{"id":1}', b'{"id":', b'{"items":[{"sku":"}', b"{\n}", b'{"customer":"\\ud800"}', b" {} "]
    ),
    st.tuples(st.integers(0, 150), st.binary(min_size=1, max_size=3)).map(
        lambda result: order(3)[: result[0]] + result[1] + order(3)[result[0] + len(result[1]) :]
    ),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 64), NOISE), max_size=6))
def test_a_row_does_not_depend_on_its_neighbours(noise: list[tuple[int, bytes]]) -> None:
    parser = Parser("json", DDL)
    values: list[bytes | None] = [order(number) for number in range(64)]
    for place, value in noise:
        values.insert(place, value)
    together = parse(values, parser)
    alone = [parse([value], parser) for value in values]
    assert dict(together.faults) == {row: each.faults[0][1] for row, each in enumerate(alone) if each.faults}
    assert together.rows.to_pylist() == [each.rows[0].as_py() for each in alone]


def test_other_formats_are_refused() -> None:
    with pytest.raises(SchemaError, match="json, avro"):
        Parser("xml", "id long")
