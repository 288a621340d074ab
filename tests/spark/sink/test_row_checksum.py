"""Checksums of rows: independent of batches, different for different rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from millpond.columns.rows import Shape
from millpond.spark.sink.row_checksum import RowChecksum, RowSum, total_of

SHAPE = Shape(None, frozenset({"key", "value", "topic", "partition", "headers", "timestamp"}))
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows() -> list[dict[str, object]]:
    return [
        {
            "key": None if number % 5 == 0 else f"k{number}",
            "value": None if number % 7 == 0 else b"v" * (number % 4),
            "topic": "ab"[number % 2],
            "partition": None if number % 3 == 0 else number,
            "headers": None if number % 4 == 0 else [{"key": "h", "value": b"%d" % number}] * (number % 3),
            "timestamp": number * 1_000_000,
        }
        for number in range(40)
    ]


def batch_of(given: list[dict[str, object]], *, large: bool = False) -> pa.RecordBatch:
    columns = [
        pa.array([row["key"] for row in given], pa.large_string() if large else pa.string()),
        pa.array([row["value"] for row in given], pa.large_binary() if large else pa.binary()),
        pa.array([row["topic"] for row in given], pa.string()),
        pa.array([row["partition"] for row in given], pa.int32()),
        pa.array([row["headers"] for row in given], HEADERS),
        pa.array([row["timestamp"] for row in given], pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, ["key", "value", "topic", "partition", "headers", "timestamp"])


def checksum(*batches: pa.RecordBatch, kind: type[RowChecksum | RowSum] = RowChecksum) -> str:
    made = kind(SHAPE)
    for batch in batches:
        made.add(batch)
    return made.text()


KINDS = pytest.mark.parametrize("kind", [RowChecksum, RowSum])


@KINDS
def test_the_checksum_does_not_depend_on_how_rows_are_batched(kind: type[RowChecksum | RowSum]) -> None:
    whole = batch_of(rows())
    expected = checksum(whole, kind=kind)
    assert checksum(whole.slice(0, 1), whole.slice(1, 20), whole.slice(21), kind=kind) == expected
    assert checksum(batch_of(rows()[:13]), batch_of(rows()[13:]), kind=kind) == expected
    assert checksum(batch_of(rows(), large=True), kind=kind) == expected


def test_the_sum_does_not_depend_on_tasks_or_order() -> None:
    shuffled = random.Random(7).sample(rows(), len(rows()))
    parts = [checksum(batch_of(part), kind=RowSum) for part in (shuffled[:30], [], shuffled[30:])]
    assert total_of(parts) == total_of([checksum(batch_of(rows()), kind=RowSum)])
    assert checksum(batch_of(shuffled)) != checksum(batch_of(rows()))


@pytest.mark.parametrize("count", [8, 100, 1024])
def test_similar_sets_of_rows_have_different_sums(count: int) -> None:
    """A linear checksum such as CRC would not tell these apart."""
    sums = set()
    for first in range(50):
        made = RowSum(Shape("t", frozenset({"value"})))
        values = pa.array([f"{first} {number:010b}" for number in range(count)], pa.string())
        made.add(pa.RecordBatch.from_arrays([values], ["value"]))
        sums.add(made.text())
    assert len(sums) == 50


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (3, "key", "kk"),
        (3, "key", None),
        (3, "key", ""),
        (3, "value", b"vvw"),
        (3, "topic", "a"),
        (4, "partition", 5),
        (4, "partition", None),
        (5, "headers", []),
        (5, "headers", [{"key": "h", "value": b"5"}, {"key": "H", "value": b"5"}]),
        (5, "timestamp", 0),
    ],
)
@KINDS
def test_any_change_changes_the_checksum(
    row: int, column: str, value: object, kind: type[RowChecksum | RowSum]
) -> None:
    changed = rows()
    assert changed[row][column] != value
    changed[row][column] = value
    assert checksum(batch_of(changed), kind=kind) != checksum(batch_of(rows()), kind=kind)


@KINDS
def test_moving_bytes_between_rows_changes_the_checksum(kind: type[RowChecksum | RowSum]) -> None:
    shape = Shape("t", frozenset({"value"}))
    sums = []
    for values in ([b"ab", b"c"], [b"a", b"bc"], [b"abc", b""], [b"abc", None]):
        made = kind(shape)
        made.add(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"]))
        sums.append(made.text())
    assert len(set(sums)) == 4


def test_no_rows_have_no_checksum() -> None:
    assert checksum() == "" == checksum(batch_of([])) == checksum(batch_of([]), kind=RowSum)
    assert total_of(["", ""]) == 0
