"""The compiled reader of Avro: equal to the plain reader for the values it accepts, with and without it."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="pip install 'millpond[arrow]'")

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.columns.parser import Parser
from millpond.wire import kernel
from support.compiled_values import agree

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel was not built")

TEXT = st.text(max_size=20)


def avro_names() -> st.SearchStrategy[str]:
    return st.uuids().map(lambda result: f"N{result.hex}")


AVRO_LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string"]),
    st.sampled_from(
        [
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "local-timestamp-millis"},
            {"type": "long", "logicalType": "local-timestamp-micros"},
            {"type": "string", "logicalType": "uuid"},
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
            {"type": "string"},
            ["int", "long"],
            ["null", "double", "float"],
        ]
    ),
    avro_names().map(lambda name: {"type": "enum", "name": name, "symbols": ["NEW", "PAID", "SENT"]}),
    avro_names().map(lambda name: {"type": "fixed", "name": name, "size": 5}),
    avro_names().map(
        lambda name: {
            "type": "fixed",
            "name": name,
            "size": 17,
            "logicalType": "decimal",
            "precision": 38,
            "scale": 3,
        }
    ),
)


def avro_records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(inner, min_size=1, max_size=5).map(
        lambda kinds: [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]
    )
    return st.tuples(avro_names(), fields).map(
        lambda result: {"type": "record", "name": result[0], "namespace": "shop", "fields": result[1]}
    )


def optional(kind: Any) -> Any:
    return kind if isinstance(kind, list) else ["null", kind]


AVRO_TYPES: st.SearchStrategy[Any] = st.recursive(
    AVRO_LEAVES,
    lambda inner: st.one_of(
        avro_records(inner),
        inner.map(optional),
        inner.map(lambda kind: [kind, "null"] if not isinstance(kind, list) else kind),
        inner.map(lambda kind: {"type": "array", "items": kind}),
        inner.map(lambda kind: {"type": "map", "values": kind}),
    ),
    max_leaves=6,
)


def number(value: int) -> bytes:
    raw = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


LONGS = st.one_of(st.integers(-200, 200), st.integers(-(2**31), 2**31), st.integers(-(2**63), 2**63 - 1))


def avro(schema: Any) -> st.SearchStrategy[bytes]:
    """A value encoded by hand, including what no writer would write, and what fits into no column."""
    if isinstance(schema, list):
        return st.integers(0, 39).flatmap(
            lambda chance: (
                st.sampled_from([-1, len(schema), 2**40]).map(number)
                if chance == 0
                else avro(schema[chance % len(schema)]).map(lambda value: number(chance % len(schema)) + value)
            )
        )
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "null":
            return st.just(b"")
        case "boolean":
            return st.sampled_from([b"\0", b"\1"] * 10 + [b"\2"])
        case "int" | "long":
            return (st.integers(-(2**31), 2**31 - 1) if kind == "int" else LONGS).map(number)
        case "float":
            return st.binary(min_size=4, max_size=4)
        case "double":
            return st.binary(min_size=8, max_size=8)
        case "bytes":
            return st.binary(max_size=18).map(lambda result: number(len(result)) + result)
        case "string":
            return st.one_of(TEXT.map(str.encode), TEXT.map(str.encode), st.binary(max_size=3)).map(
                lambda result: number(len(result)) + result
            )
        case "enum":
            return st.sampled_from([0, 1, 2] * 7 + [-1, 3]).map(number)
        case "fixed":
            small = st.integers(-(10**9), 10**9).map(lambda value: value.to_bytes(schema["size"], "big", signed=True))
            return st.one_of(small, st.binary(min_size=schema["size"], max_size=schema["size"]))
        case "array":
            return blocks(avro(schema["items"]))
        case "map":
            key = st.sampled_from(["", "a", "b", "é", "key"]).map(
                lambda text: number(len(text.encode())) + text.encode()
            )
            return blocks(st.tuples(key, avro(schema["values"])).map(b"".join))
    assert kind == "record"
    return st.tuples(*(avro(each["type"]) for each in schema["fields"])).map(b"".join)


def blocks(item: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    def block(items: list[bytes], is_sized: bool) -> bytes:
        inner = b"".join(items)
        return (number(-len(items)) + number(len(inner)) if is_sized else number(len(items))) + inner

    one = st.tuples(st.lists(item, min_size=1, max_size=3), st.booleans()).map(lambda result: block(*result))
    return st.lists(one, max_size=2).map(lambda result: b"".join(result) + b"\0")


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_avro_of_any_schema(data: st.DataObject) -> None:
    schema = data.draw(avro_records(AVRO_TYPES))
    prefixed = data.draw(st.booleans())
    parser = Parser("avro", json.dumps(schema), prefixed=prefixed)
    value = avro(schema).map(lambda result: b"\0\0\0\0\7" + result if prefixed else result)
    broken = st.tuples(value, st.integers(0, 40), st.binary(max_size=3)).map(
        lambda result: result[0][: result[1]] + result[2] + result[0][result[1] + 1 :]
    )
    values = data.draw(st.lists(st.one_of(value, value, st.none(), broken, st.binary(max_size=20)), max_size=5))
    agree(parser, values)


def simple(kind: Any) -> Parser:
    return Parser("avro", json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))


@pytest.mark.parametrize("scale", [0, 9, 38])
def test_a_decimal_of_38_digits_keeps_them_all(scale: int) -> None:
    parser = simple({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale})
    numbers = [
        10**38 - 1,
        -(10**38) + 1,
        10**38,
        -(10**38),
        0,
        -1,
        12345678901234567890123456789012345678,
        2**63,
        2**64,
    ]
    values: list[bytes | None] = [
        number(size) + each.to_bytes(size, "big", signed=True)
        for each in numbers
        for size in (16, 17, 64)
        if each.bit_length() < 8 * size
    ]
    assert agree(parser, values) >= 7
    result = parser.parse(pa.array(values[:1], pa.binary())).rows[0].as_py()["v"]
    assert result == Decimal((0, (9,) * 38, -scale))


def test_common_avro_values_are_accepted() -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "ok", "type": "boolean"},
            {"name": "ratio", "type": ["null", "float"], "default": None},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {"name": "words", "type": {"type": "array", "items": ["string", "null"]}},
        ],
    }
    parser = Parser("avro", json.dumps(schema))
    price = b"\x04\xfb\x1e"
    full = (
        number(-7)
        + number(1_700_000_000_000)
        + price
        + b"\x02\x01\x02\0\0\0\x3f\x02\x02a\x04\xc3\xa9\0\x04\0\x02x\x02\0"
    )
    bare = number(2**63 - 1) + number(0) + price + b"\0\0\0\0\0"
    assert agree(parser, [full, None, bare, full]) == 3
    row = parser.parse(pa.array([full], pa.binary())).rows.to_pylist()[0]
    assert row["price"] == Decimal("-12.50")
    assert (row["ratio"], row["tags"], row["words"]) == (0.5, [("a", "é")], ["x", None])
    cut: list[bytes | None] = [full[:end] for end in range(len(full))]
    assert agree(parser, [*cut, full + b"\0"]) == 0


def test_type_names_are_resolved_like_in_fastavro() -> None:
    schema = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "a", "type": {"type": "enum", "name": "State", "symbols": ["X", "Y"]}},
            {"name": "b", "type": "State"},
            {"name": "c", "type": ["null", "shop.State"]},
            {"name": "d", "type": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}},
            {"name": "e", "type": {"type": "array", "items": "Line"}},
        ],
    }
    out = io.BytesIO()
    row = {"a": "X", "b": "Y", "c": "X", "d": {"n": 1}, "e": [{"n": 2}, {"n": 3}]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    parser = Parser("avro", json.dumps(schema))
    assert agree(parser, [out.getvalue()]) == 1
    assert parser.parse(pa.array([out.getvalue()], pa.binary())).rows.to_pylist() == [row]
