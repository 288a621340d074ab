"""Bounds from filters: whatever a filter is, no offset that it matches is left out."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.analysis.ranges import OffsetRange
from millpond.analysis.sql.scan_bounds import pruned
from millpond.base.ids import TopicPartition

SIZE = 12
SCHEMA = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("amount", pa.int64()),
    ]
)
PARTITIONS = (0, 1)
RANGES = [OffsetRange(TopicPartition("t", each), 0, SIZE, UUID(int=1)) for each in PARTITIONS]


def moment(time_ms: int) -> pa.Scalar:
    return pa.scalar(time_ms * 1000, pa.timestamp("us", "UTC"))


NUMBERS = st.integers(-2, SIZE + 2)
LEAVES = st.one_of(
    st.builds(
        lambda name, sign, number: _compared(ds.field(name), sign, number),
        st.sampled_from(["_partition", "_offset", "amount"]),
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        NUMBERS,
    ),
    st.builds(
        lambda sign, number: _compared(ds.field("_timestamp"), sign, moment(number)),
        st.sampled_from(["<", "<=", ">", ">=", "=="]),
        NUMBERS,
    ),
    st.lists(NUMBERS, max_size=3).map(lambda each: ds.field("_offset").isin(pa.array(each, pa.int64()))),
    st.sampled_from(["t", "u"]).map(lambda name: ds.field("_topic") == name),
    st.just(ds.field("amount").is_null()),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda each: each[0] & each[1]),
        st.tuples(inner, inner).map(lambda each: each[0] | each[1]),
        inner.map(lambda each: ~each),
    ),
    max_leaves=6,
)


def _compared(field: ds.Expression, sign: str, number: object) -> ds.Expression:
    return {
        "<": lambda: field < number,
        "<=": lambda: field <= number,
        ">": lambda: field > number,
        ">=": lambda: field >= number,
        "==": lambda: field == number,
        "!=": lambda: field != number,
    }[sign]()


@settings(max_examples=60)
@given(FILTERS, st.lists(st.integers(0, SIZE), min_size=SIZE, max_size=SIZE))
def test_nothing_that_matches_is_left_out(expression: ds.Expression, times: list[int]) -> None:
    rows = [
        {"_topic": "t", "_partition": partition, "_offset": offset, "_timestamp": None, "amount": offset % 3 or None}
        for partition in PARTITIONS
        for offset in range(SIZE)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA).set_column(
        3, SCHEMA.field(3), pa.array([each * 1000 for each in times * len(PARTITIONS)], SCHEMA.field(3).type)
    )

    def at_times(time_ms: int, partitions: object) -> dict[TopicPartition, int | None]:
        first = next((offset for offset, each in enumerate(times) if each >= time_ms), None)
        return {each.partition: first for each in RANGES}

    left = {
        (each.partition.partition, offset)
        for each in pruned(RANGES, expression, SCHEMA, at_times)
        for offset in range(each.start, each.end)
    }
    matching = table.filter(expression).to_pylist()
    assert {(row["_partition"], row["_offset"]) for row in matching} <= left


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (ds.field("_offset") >= 9, [(0, 9, 12), (1, 9, 12)]),
        ((ds.field("_offset") > 2) & (ds.field("_offset") < 6) & (ds.field("amount") == 1), [(0, 3, 6), (1, 3, 6)]),
        (ds.field("_partition") == 1, [(1, 0, 12)]),
        (ds.field("_timestamp") >= moment(5), [(0, 5, 12), (1, 5, 12)]),
        ((ds.field("_timestamp") > moment(4)) & (ds.field("_timestamp") < moment(6)), [(0, 5, 12), (1, 5, 12)]),
        (ds.field("_timestamp") > moment(1 << 42), []),
        (ds.field("amount") == 1, [(0, 0, 12), (1, 0, 12)]),
        (None, [(0, 0, 12), (1, 0, 12)]),
    ],
)
def test_bounds_are_tight(expression: ds.Expression | None, expected: list[tuple[int, int, int]]) -> None:
    def at_times(time_ms: int, partitions: object) -> dict[TopicPartition, int | None]:
        return {each.partition: time_ms if time_ms < SIZE else None for each in RANGES}

    found = pruned(RANGES, expression, SCHEMA, at_times)
    assert [(each.partition.partition, each.start, each.end) for each in found] == expected
