"""Arrow's parser: takes whole runs of good values, and means by each what json_rows means."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")

import pyarrow as pa
from hypothesis import given, settings

from millpond.spark.parsing import json_columns
from millpond.spark.parsing.errors import Fault
from millpond.spark.parsing.json_columns import ColumnReader, Refused
from millpond.spark.parsing.json_rows import row_reader
from millpond.spark.parsing.schemas import arrow_struct, nullable, read_schema
from support.json_values import BYTES, LEAVES, PLACES

KIND = read_schema(
    "i byte, l long, d double, f float, s string, t timestamp, n timestamp_ntz, y date, p decimal(6,2), b boolean, "
    "a array<struct<x:int,t:timestamp>>, o struct<q:string not null, z array<double>>"
)
TARGET = arrow_struct(nullable(KIND))  # type: ignore[arg-type]
TEXTS = ColumnReader(KIND, TARGET, epochs=False)
EPOCHS = ColumnReader(KIND, TARGET, epochs=True)
read_row = row_reader(KIND)

ORDER = {
    "i": -5,
    "l": 2**63 - 1,
    "d": 3,
    "s": "é😀",
    "t": "2024-01-02T03:04:05.123Z",
    "n": "2024-01-02 03:04:05",
    "y": "2024-01-02",
    "p": "12.5",
    "b": True,
    "a": [{"x": 1, "t": "2024-01-02T03:04:05+01:00", "unknown": [1]}, None],
    "o": {"q": "x", "z": [1, 2.5, None]},
    "unknown": {"deep": [{}]},
}


def array(*values: bytes | str | dict[str, Any]) -> pa.BinaryArray:
    encoded = [json.dumps(each) if isinstance(each, dict) else each for each in values]
    return pa.array([each.encode() if isinstance(each, str) else each for each in encoded], pa.binary())


def rows(*values: bytes | str | dict[str, Any], reader: ColumnReader = TEXTS) -> pa.StructArray:
    found = reader.read(array(*values))
    found.validate(full=True)
    assert found.type == TARGET
    return found


def test_good_values_of_every_type_have_spark_s_types_and_the_meaning_of_json_rows() -> None:
    found = rows(ORDER, {}, {"a": [], "o": None, "t": None}, ' {"i":1}\r\n')
    single = pa.array([read_row(each.as_py()) for each in array(ORDER, {}, {"a": [], "o": None}, {"i": 1})], TARGET)
    assert found.to_pylist() == single.to_pylist()
    assert found.null_count == 0


def test_times_as_numbers() -> None:
    times = [1700000000, 1700000000123, 1700000000123456, -(10**17) - 999, None]
    values = [{"t": each, "n": each, "a": [{"t": each}]} for each in times]
    found = rows(*values, reader=EPOCHS)
    assert found.to_pylist() == pa.array([read_row(json.dumps(each).encode()) for each in values], TARGET).to_pylist()
    with pytest.raises(Refused):
        rows(*values)
    with pytest.raises(Refused):
        rows({"t": -(2**63)}, reader=EPOCHS)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "null",
        "[]",
        '{"i":1}{"i":2}',
        '{"i":1}\n{"i":2}',
        '{\n"i":1}',
        '{"i":1}\0{"i":2}',
        '{"i":1} {"i":2}',
        '{"i":1}}',
        '{"i":',
        '{"s":"}',
        b'{"s":"\xff"}',
        '{"s":"a\nb"}',
        '{"i":300}',
        '{"i":1.0}',
        '{"s":1}',
        '{"y":19000}',
        '{"y":"2024-02-30"}',
        '{"y":"0000-01-01"}',
        '{"t":"0000-01-01"}',
        '{"p":"12345.6"}',
        '{"p":"1.001"}',
        '{"i":1,"i":2}',
        '{"o":{}}',
        '{"o":{"q":null}}',
    ],
)
def test_one_value_that_may_be_bad_refuses_the_run(value: bytes | str) -> None:
    with pytest.raises(Refused):
        rows(ORDER, value, ORDER)


def test_values_cannot_go_on_in_the_next_or_hide_behind_one_that_does() -> None:
    # Three lines that make three objects, were they read as one text: none of them is what its line says.
    for lines in (
        ('{"i":1}{"i":2}', '{"o":', '{"q":"x"}}'),
        ('{"i":1}{"i":2}', '{"s":"}', '{"i":3}'),
        ('{"i":1}{"i":2}', '{"i":3}\0}', '{"i":4}'),
    ):
        with pytest.raises(Refused):
            rows(*lines)


def test_the_first_bad_row_is_named_where_the_parser_knows_it() -> None:
    with pytest.raises(Refused) as caught:
        rows(*[ORDER] * 40, {"i": "x"}, *[ORDER] * 40)
    assert caught.value.row == 40


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_columns, "ROWS_MAX", 2)
    assert len(rows(ORDER, ORDER)) == 2
    with pytest.raises(Refused, match="too much"):
        rows(ORDER, ORDER, ORDER)
    monkeypatch.setattr(json_columns, "VALUE_BYTES_MAX", 20)
    with pytest.raises(Refused, match="too long"):
        rows({"s": "x" * 20})


def test_many_rows_stay_within_what_arrow_s_parser_takes() -> None:
    values = pa.array([b'{"i":1}'] * json_columns.ROWS_MAX, pa.binary())
    assert len(TEXTS.read(values)) == json_columns.ROWS_MAX


@pytest.mark.parametrize(
    ("kind", "can"), [("a int", True), ("a array<map<string,int>>", False), ("a struct<b:binary>", False)]
)
def test_maps_and_binary_are_left_to_json_rows(kind: str, can: bool) -> None:
    assert ColumnReader.can_read(read_schema(kind)) is can


def taken_alike(value: bytes) -> int:
    """By how many ways it is taken here; what that means is the same as there."""
    taken = 0
    for reader in (TEXTS, EPOCHS):
        try:
            found = reader.read(array(value))
        except Refused:
            continue
        found.validate(full=True)
        try:
            single = pa.array([read_row(value)], TARGET)
        except Fault as fault:
            raise AssertionError(f"{value!r} is taken here and refused there: {fault}") from None
        assert _comparable(found.cast(_NUMBERS).to_pylist()) == _comparable(single.cast(_NUMBERS).to_pylist()), value
        taken += 1
    return taken


def test_every_kind_of_value_at_every_place() -> None:
    taken = [taken_alike((place % leaf).encode()) for place in PLACES for leaf in LEAVES]
    assert sum(taken) > len(taken) / 5


@settings(max_examples=200)
@given(BYTES)
def test_what_is_taken_here_means_the_same_as_there(value: bytes) -> None:
    taken_alike(value)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type)))
    return pa.int64() if pa.types.is_timestamp(kind) else kind


_NUMBERS = _plain_type(TARGET)
"""Times as numbers: Python's own end with the year 9999."""


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value
