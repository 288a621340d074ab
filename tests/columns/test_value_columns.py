"""The compiled reader of JSON: equal to the plain reader for the values it accepts, with and without it."""

from __future__ import annotations

import base64
import json
import math
import random
import string
from decimal import Decimal
from importlib import import_module
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.columns import types, value_columns
from millpond.columns.parser import Parser
from millpond.columns.value_columns import ValueColumns
from millpond.wire import kernel
from support.compiled_values import agree, rows_of
from support.json_values import BYTES, LEAVES, NUMBERS, PLACES, TIMES

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel was not built")

JSON_KIND = (
    "i byte, h short, w int, l long, d double, f float, s string, t timestamp, n timestamp_ntz, y date, "
    "p decimal(6,2), b boolean, a array<struct<x:int,t:timestamp>>, o struct<q:string not null, z array<double>>, "
    "m map<string,int>, v map<string,struct<k:string,e:array<long>>>, c binary, g decimal(38,10), u decimal(5,5)"
)
EVERY = Parser("json", JSON_KIND)
EVERY_PLACE = [
    *PLACES,
    *(f'{{"{name}":%s}}' for name in "hwmvcgu"),
    '{"m":{"a":%s,"b":1}}',
    '{"v":{"":{"k":%s}}}',
    '{"v":{"":{"e":[%s,1]}}}',
    '{"i":%s,"i":1}',
    '{"unknown":%s}',
    '{"unknown":{"deep":[%s]},"i":1}',
]
MORE_LEAVES = [
    *LEAVES,
    *(f'"{each}"' for each in ("aGk=", "aGl=", "aA==", "aB==", "aGVs", "a", "====", "aGVsaGk=", "a G=", "+/+/")),
    *(f'"2024-01-02T03:04{each}"' for each in ("+02", "+2", "+02:", "+020", "-23:59", "-00:00", "+24", "+02:60")),
    *(f'"2024-01-02T03{each}"' for each in ("Z", "+02", ":", ":5", ":04:", ":04:05.", ":04:05.1234567890", ":60")),
    *(f'"{each}"' for each in ("2023-02-29", "2000-02-29", "1900-02-29", "0001-01-01", "9999-12-31", "2024-00-01")),
    *(
        "-0",
        "-0.0",
        "-0e0",
        "0.0000001",
        "0.000001",
        "10.0000001",
        "1e9999999999999999999",
        "1e0",
        "1E+2",
        "-",
        "--1",
    ),
    *("1700000000.123456789", "1700000000123.4567", "170000000012345.9", "-0.0000019", "99999999999.9999999"),
    *("9223372036854775808.5", "10000000000000000000", "18446744073709551616", "99999999999999999999"),
    *("12345678901234567890123456.7890123456", "9999999999999999999999999999.9999999999", "1e27", "0.00001", "1.0"),
    *(
        '"\\n\\t\\r\\b\\f\\/\\"\\\\"',
        '"\\u00e9\\u20ac"',
        '"\\ud83d"',
        '"\\ud83dx"',
        '"\\ud83d\\u0041"',
        '"\\x"',
        '"\\u12"',
    ),
    *('"\\ud83d\\ude00\\ud83d\\ude00"', '"\\uD83D\\uDE00"', '"ab', '"\\', '{"a":1,"a":2}', '{"\\u0061":1}', "{1:2}"),
    *("nul", "nulll", "True", "tru", "falsee", "Nan", "Inf", "-Inf", "-NaN", "[1,]", '{"a":1,}', "[1 2]", "[,]", ""),
    "[" * 70 + "]" * 70,
    "9" * 299,
    "9" * 301,
    "9" * 5000,
    "0." + "1" * 400,
    '"' + "x" * 40 + '\\"' + "é" * 20 + '"',
    json.dumps({f"key-{each}": each for each in range(70)}),
]


def test_every_json_value_in_every_position() -> None:
    values: list[bytes | None] = [(place % leaf).encode() for place in EVERY_PLACE for leaf in MORE_LEAVES]
    taken = sum(agree(EVERY, values[at : at + 40]) for at in range(0, len(values), 40))
    assert taken > len(values) / 5


def test_common_json_values_are_accepted() -> None:
    row = {
        "i": -5,
        "h": 300,
        "w": 70_000,
        "l": -(2**63),
        "d": 0.1 + 0.2,
        "f": 1.5,
        "s": 'é"😀',
        "b": False,
        "p": "12.5",
        "t": "2024-01-02T03:04:05.123+02:00",
        "n": 1_700_000_000.5,
        "y": "2024-02-29",
        "g": -1.25,
        "c": "aGk=",
        "a": [{"x": 1, "t": None}, None, {}],
        "o": {"q": "", "z": []},
        "m": {"a": 1, "b": None},
        "v": {"x": {}},
    }
    values: list[bytes | None] = [json.dumps(row | {"more": [each]}).encode() for each in (1, {}, "x", None, [[]])]
    values += [None, json.dumps(row, indent=2).encode(), json.dumps(row, ensure_ascii=False).encode(), b" {} "]
    assert agree(EVERY, values) == len(values) - 1


def test_fields_in_any_order_with_any_names() -> None:
    names = ["a", "ab", "abcdefg", "abcdefgh", "abcdefghi", "é", "😀", "x y", 'q"q', "b\\b", "n\nn", "", "abcdefghj"]
    kind = types.StructType([types.StructField(each, types.IntegerType()) for each in names])
    parser = Parser("json", kind)
    chance = random.Random(15)
    values: list[bytes | None] = []
    for _ in range(300):
        chosen_names = chance.sample([*names, "abcdefghk", "q", "ac", "zzzzzzzzz"], chance.randint(0, 14))
        text = json.dumps({name: at for at, name in enumerate(chosen_names)}, ensure_ascii=chance.random() < 0.2)
        values.append(text.encode())
    assert agree(parser, values) > 50
    agree(parser, [b'{"q"q":1}', b'{"a', b'{"a"', b'{"a":', b'{"ab":1', b'{"abcdefgh":1,"abcdefghi":2}', b'{"":7}'])


@pytest.mark.parametrize("kind", ["double", "float"])
def test_decimal_fractions_are_rounded_to_the_nearest(kind: str) -> None:
    parser = Parser("json", f"v {kind}")
    chance = random.Random(15)
    texts = []
    for _ in range(6000):
        digits = "".join(chance.choices(string.digits, k=chance.choice([1, 5, 15, 16, 17, 18, 19, 20, 30])))
        digits = digits.lstrip("0") or "0"
        point = chance.randint(0, len(digits))
        text = f"{digits[:point].lstrip('0') or '0'}.{digits[point:] or '0'}"
        texts.append(f"{text}e{chance.randint(-340, 320) if chance.random() < 0.3 else chance.randint(-70, 70)}")
        texts.append(repr(chance.uniform(-1e6, 1e6)))
        texts.append(repr(float(f"{chance.getrandbits(64)}e{chance.randint(-60, 40)}")))
    # Halfway between two doubles, and next to it.
    for _ in range(2000):
        exponent = chance.randint(-30, 60)
        middle = Decimal(2 * chance.getrandbits(52) + 2**53 + 1) * Decimal(2) ** exponent
        texts += [f"{middle:.25g}", f"{middle:f}"[:60], f"{int(middle)}", f"{int(middle) + 1}", f"{int(middle)}.0"]
    values: list[bytes | None] = [b'{"v":%s}' % each.encode() for each in texts]
    assert agree(parser, values) > len(values) / 2


@settings(max_examples=300)
@given(st.lists(BYTES, max_size=4))
def test_any_bytes_as_json(values: list[bytes | None]) -> None:
    agree(EVERY, values)


LEAF_TYPES: list[types.DataType] = [
    types.ByteType(),
    types.ShortType(),
    types.IntegerType(),
    types.LongType(),
    types.FloatType(),
    types.DoubleType(),
    types.StringType(),
    types.BinaryType(),
    types.BooleanType(),
    types.DateType(),
    types.TimestampType(),
    types.TimestampNTZType(),
    types.DecimalType(4, 2),
    types.DecimalType(38, 0),
    types.DecimalType(20, 20),
]
NAMES = st.sampled_from(["a", "b", "id", "amount", "a_long_name_of_a_field", "é", 'x"y'])


def structs(inner: st.SearchStrategy[types.DataType]) -> st.SearchStrategy[types.DataType]:
    field = st.tuples(NAMES, inner, st.booleans())
    return st.lists(field, min_size=1, max_size=5, unique_by=lambda result: result[0]).map(
        lambda fields: types.StructType([types.StructField(*each) for each in fields])
    )


TYPES: st.SearchStrategy[types.DataType] = st.recursive(
    st.sampled_from(LEAF_TYPES),
    lambda inner: st.one_of(
        structs(inner), inner.map(types.ArrayType), inner.map(lambda kind: types.MapType(types.StringType(), kind))
    ),
    max_leaves=6,
)
TEXT = st.text(max_size=20)
WRONG = st.sampled_from(MORE_LEAVES)


def written(kind: types.DataType) -> st.SearchStrategy[str]:
    """A value of the type as JSON; or, at times, another."""
    return st.integers(0, 19).flatmap(lambda chance: WRONG if chance == 0 else _written(kind))


def _written(kind: types.DataType) -> st.SearchStrategy[str]:
    match kind:
        case types.StructType():
            return _object([(each.name, written(each.type)) for each in kind])
        case types.ArrayType():
            return st.lists(written(kind.element), max_size=3).map(lambda items: f"[{', '.join(items)}]")
        case types.MapType():
            pair = st.tuples(TEXT, written(kind.value))
            return st.lists(pair, max_size=3).map(_pairs)
        case types.StringType():
            return st.one_of(TEXT.map(json.dumps), TEXT.map(lambda text: json.dumps(text, ensure_ascii=False)))
        case types.BooleanType():
            return st.sampled_from(["true", "false"])
        case types.FloatType() | types.DoubleType():
            return st.one_of(st.floats().map(json.dumps), st.sampled_from(NUMBERS.split()))
        case types.DecimalType():
            numbers = st.decimals(allow_nan=False, allow_infinity=False, places=kind.scale).map(str)
            return st.one_of(numbers, numbers.map(json.dumps), st.integers(-99, 99).map(str))
        case types.BinaryType():
            return st.binary(max_size=9).map(lambda result: json.dumps(base64.b64encode(result).decode()))
        case types.DateType():
            return st.dates().map(lambda day: f'"{day.isoformat()}"')
        case types.TimestampType() | types.TimestampNTZType():
            return st.one_of(
                st.datetimes().map(lambda moment: f'"{moment.isoformat()}Z"'),
                st.datetimes().map(lambda moment: f'"{moment.isoformat(" ")}+01:30"'),
                st.sampled_from(TIMES.split()).map(json.dumps),
                st.integers(-(2**64), 2**64).map(str),
                st.integers(0, 2**36).map(str),
                st.floats(0, 2e18).map(json.dumps),
            )
    return st.one_of(st.integers(-130, 130), st.integers(-(2**31), 2**31), st.integers(-(2**64), 2**64)).map(str)


def _object(fields: list[tuple[str, st.SearchStrategy[str]]]) -> st.SearchStrategy[str]:
    """Most of its fields, each once or, at times, twice; and others."""
    each = [
        st.integers(0, 14).flatmap(
            lambda chance, name=name, value=value: (  # type: ignore[misc]
                st.just([])
                if chance == 0
                else st.lists(st.tuples(st.just(name), value), min_size=2, max_size=2)
                if chance == 1
                else st.tuples(st.just(name), st.just("null") if chance == 2 else value).map(lambda pair: [pair])
            )
        )
        for name, value in fields
    ]
    unknown = st.lists(st.tuples(st.sampled_from(["other", "i", ""]), WRONG), max_size=1)
    together = st.tuples(*each, unknown).map(lambda result: [pair for pairs in result for pair in pairs])
    return together.flatmap(lambda pairs: st.permutations(pairs) if len(pairs) < 4 else st.just(pairs)).map(_pairs)


def _pairs(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in pairs) + "}"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_json_of_any_schema(data: st.DataObject) -> None:
    kind = data.draw(structs(TYPES))
    assert isinstance(kind, types.StructType)
    parser = Parser("json", kind)
    value = written(kind).map(str.encode)
    broken = st.tuples(value, st.integers(0, 80), st.binary(max_size=2)).map(
        lambda result: result[0][: result[1]] + result[2] + result[0][result[1] + 1 :]
    )
    agree(parser, data.draw(st.lists(st.one_of(value, value, value, st.none(), broken), max_size=5)))


# Slices, threads, buffers.


def test_slices_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [
        None if number % 7 == 3 else b'{"i":%d,"s":"%s"}' % (number % 200, b"x" * number) for number in range(400)
    ]
    array = pa.array(values, pa.binary())
    whole = EVERY.parse(array)
    assert [row for row, _ in whole.faults] == [row for row in range(400) if row % 200 > 127 and row % 7 != 3]
    for start, count in ((0, 400), (1, 399), (9, 17), (399, 1), (400, 0), (128, 72)):
        part = EVERY.parse(array.slice(start, count))
        assert part.rows.equals(whole.rows.slice(start, count))
        assert [start + row for row, _ in part.faults] == [
            row for row, _ in whole.faults if start <= row < start + count
        ]
    monkeypatch.setattr(value_columns, "RUN_BYTES_MAX", 1000)
    parts = EVERY.parse(array)
    assert parts.rows.equals(whole.rows)
    assert parts.faults == whole.faults
    assert EVERY.parse(pa.array([], pa.binary())).rows.to_pylist() == []
    assert EVERY.parse(pa.nulls(3, pa.binary())).rows.null_count == 3


def test_results_survive_later_reads() -> None:
    first = EVERY.parse(pa.array([b'{"s":"one","a":[{"x":1}]}'] * 50, pa.binary())).rows
    EVERY.parse(pa.array([b'{"s":"two","a":[{"x":2},{}]}', b"{"] * 50, pa.binary()))
    assert {(row["s"], row["a"][0]["x"]) for row in first.to_pylist()} == {("one", 1)}


def test_threads_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks with the same options share a parser. Without a lock, one would return the values of the other."""
    parser = Parser("json", "a string, b string")
    few, many = (pa.array([b'{"a":"x","b":"y"}'] * count, pa.binary()) for count in (3, 1000))
    module = import_module("millpond.wire.kernel._values")
    make = module.ValueBuffers
    result: list[pa.StructArray] = []
    other = Thread(target=lambda: result.append(parser.parse(many).rows))

    def make_late(*arguments: Any) -> Any:
        # The interpreter may switch threads here.
        if other.ident is None:
            other.start()
            other.join(0.1)
        return make(*arguments)

    monkeypatch.setattr(module, "ValueBuffers", make_late)
    rows = parser.parse(few).rows
    other.join()
    assert rows_of(rows) == [{"a": "x", "b": "y"}] * 3
    assert rows_of(result[0]) == [{"a": "x", "b": "y"}] * 1000


def test_invalid_buffers_are_refused() -> None:
    assert EVERY._compiled is not None
    read = EVERY._compiled._reader.read
    ends = b"".join(each.to_bytes(4, "little", signed=True) for each in (0, 2, 4))
    assert read(2, 0, None, ends, b"{}{}")[1] == []
    backwards = b"".join(each.to_bytes(4, "little", signed=True) for each in (0, 4, 2, -1))
    for count, start, validity, offsets, data in [
        (3, 0, None, ends, b"{}{}"),
        (2, 1, None, ends, b"{}{}"),
        (-1, 0, None, ends, b"{}{}"),
        (1, -1, None, ends, b"{}{}"),
        (1 << 62, 1 << 62, None, ends, b"{}{}"),
        (2, 0, b"", ends, b"{}{}"),
        (2, 0, None, ends, b"{}{"),
        (2, 0, None, ends, None),
        (1, 1, None, backwards, b"{}{}"),
        (1, 2, None, backwards, b"{}{}"),
    ]:
        with pytest.raises(ValueError):
            read(count, start, validity, offsets, data)
    assert read(2, 0, None, ends, b"{}{}")[1] == []


def test_without_the_compiled_kernel_the_plain_reader_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "COMPILED", False)
    parser = Parser("json", "i int")
    assert parser._compiled is None
    assert parser.parse(pa.array([b'{"i":1}', b"", None], pa.binary())).rows.to_pylist() == [{"i": 1}, None, None]


def test_nan_and_infinity_are_kept() -> None:
    result = EVERY.parse(pa.array([b'{"d":NaN,"f":"NaN"}', b'{"d":"-Infinity","f":Infinity}'], pa.binary())).rows
    assert math.isnan(result[0]["d"].as_py())
    assert math.isnan(result[0]["f"].as_py())
    assert result[1].as_py()["d"] == -math.inf
    assert result[1].as_py()["f"] == math.inf
    assert isinstance(EVERY._compiled, ValueColumns)
    assert EVERY._compiled.read(pa.array([b'{"d":NaN,"f":"NaN"}'], pa.binary()))[1] == []
