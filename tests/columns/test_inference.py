"""Schemas inferred from samples, by which the samples parse."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.columns.inference import CERTAIN_RECORDS, MAP_KEYS_MIN, infer
from millpond.columns.parser import Parser


def types_of(*records: dict[str, Any]) -> dict[str, str]:
    return {each.name: each.type for each in infer(json.dumps(each).encode() for each in records).columns}


@pytest.mark.parametrize(
    ("seen", "type"),
    [
        ([1, 2], "long"),
        ([1, 2.5], "double"),
        ([True, None], "boolean"),
        (["a", "2026-01-31"], "string"),
        (["2026-01-31T08:30:00Z", "2026-01-31 08:30"], "timestamp"),
        (["2026-01-31"], "date"),
        (["2026-01-31", "2026-01-31T08:30:00+02:00"], "timestamp"),
        ([1, "a"], "string"),
        ([1 << 70], "string"),
        ([True, 1], "string"),
        ([None], "string"),
        ([[]], "array<string>"),
        ([[1], [2.5, None]], "array<double>"),
        ([{}], "string"),
        ([{"a": 1}, {"b c": ["x"]}], "struct<a:long,`b c`:array<string>>"),
        ([{"a": {"b": "2026-01-31"}}], "struct<a:struct<b:date>>"),
        ([{str(number): number for number in range(MAP_KEYS_MIN)}], "map<string,long>"),
        ([{"a": 1}, "text"], "string"),
    ],
)
def test_the_type_of_a_field(seen: list[Any], type: str) -> None:
    assert types_of(*({"x": each} for each in seen)) == {"x": type}


def test_numbers_are_times_by_name_and_size() -> None:
    ms = 1_769_848_200_000
    seen = {
        "created_at": ms,
        "updatedAt": ms // 1000,
        "ts": ms * 1000,
        "total": ms,
        "took_time": 12,
        "created_ms": ms,
    }
    assert types_of(seen) == {
        "created_at": "timestamp", "updatedAt": "timestamp", "ts": "timestamp", "total": "long", "took_time": "long",
        "created_ms": "timestamp",
    }  # fmt: skip


def test_required_and_optional_fields() -> None:
    records = [{"id": number, "note": None if number == 7 else "x"} for number in range(CERTAIN_RECORDS)]
    records[3]["rare"] = 1
    seen = infer(json.dumps(each).encode() for each in records)
    assert [str(each) for each in seen.columns] == ["id long not null", "note string", "rare long"]
    few = infer(json.dumps(each).encode() for each in records[:-1])
    assert not any(each.is_required for each in few.columns), "so few records prove nothing"


def test_mixed_kinds_are_commented() -> None:
    records = [{"x": 1, "in": {"deep": ["a", 5]}}, {"x": "it's"}, {"x": "b"}]
    assert [str(each) for each in infer(json.dumps(each).encode() for each in records).columns] == [
        "x string comment 'x: a text 2 times, a whole number 1 times'",
        "in struct<deep:array<string>> comment 'in.deep[]: a text 1 times, a whole number 1 times'",
    ]


def test_values_that_are_not_objects_are_counted() -> None:
    seen = infer([b'{"a": 1}', b"nothing", b"[1]", None, b"\x00\x00\x00\x00\x07abc", b"\xff"])
    assert (seen.records, seen.strangers, seen.prefixed) == (5, 4, 1)


def test_names_that_differ_only_in_case_are_one() -> None:
    assert types_of({"ID": 1, "id": "x", "": 5}) == {"ID": "long"}
    assert types_of({"a": {"B": 1, "b": "x"}}) == {"a": "struct<B:long>"}


NAMES = st.text(min_size=1, max_size=3).filter(lambda name: name.isprintable())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.dates().map(str) | st.datetimes().map(lambda each: each.isoformat() + "Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=5))
def test_a_sample_parses_by_its_own_schema(records: list[dict[str, Any]]) -> None:
    values = [json.dumps(each).encode() for each in records]
    columns = infer(values).columns
    if not columns:
        return
    parsed = Parser("json", ", ".join(map(str, columns))).parse(pa.array(values, pa.binary()))
    assert parsed.faults == []


def test_a_name_that_is_not_valid_text_is_left_out() -> None:
    seen = infer([rb'{"a": 1, "\ud800": 2, "b": {"c": 1, "\udc00": 2}}'])
    assert [(each.name, each.type) for each in seen.columns] == [("a", "long"), ("b", "struct<c:long>")]
