"""Partitioning rows: no row is lost, and Delta reads values and folders back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.spark.lake.errors import LakeOptionError
from millpond.spark.lake.layout import check_partitionable, folder, partition_value, split

rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from([1, 2, None]), st.integers(0, 9)), max_size=40
)


@given(rows)
def test_every_row_goes_to_its_partition_in_order(given_rows: list[tuple[str | None, int | None, int]]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"word": word, "number": number, "value": value} for word, number, value in given_rows],
        pa.schema([("word", pa.string()), ("number", pa.int32()), ("value", pa.int64())]),
    )
    result: dict[tuple[str | None, ...], list[int]] = {}
    for values, part in split(batch, ["word", "number"]):
        assert part.schema.names == ["value"]
        result.setdefault(values, []).extend(part.column("value").to_pylist())
    model: dict[tuple[str | None, ...], list[int]] = {}
    for word, number, value in given_rows:
        model.setdefault((word or None, None if number is None else str(number)), []).append(value)
    # A null and an empty text are one partition in Delta, and two runs here, so their rows may come in either order.
    assert {key: sorted(values) for key, values in result.items()} == {key: sorted(v) for key, v in model.items()}
    assert all(result[key] == values for key, values in model.items() if key[0] is not None)


def test_without_partition_columns_the_batch_stays_whole() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    assert list(split(batch, [])) == [((), batch)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        ("a b", "a b"),
        (True, "true"),
        (-7, "-7"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 12, 0, 0, 5, UTC), "2026-01-31 12:00:00.000005"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_values_are_written_as_delta_writes_them(value: object, text: str | None) -> None:
    assert partition_value(value) == text


def test_folders_are_safe_names() -> None:
    assert folder(["day", "shop"], ("2026-01-31", None)) == "day=2026-01-31/shop=__HIVE_DEFAULT_PARTITION__"
    assert folder(["a/b"], ("x/../y:%",)) == "a%2Fb=x%2F..%2Fy%3A%25"
    long = [folder(["a"], (("ü" * 300) + end,)) for end in "xy"]
    assert long[0] != long[1]
    assert all(len(name) < 160 for name in long)


def test_invalid_partition_columns_are_refused() -> None:
    schema = pa.schema([("real", pa.float64()), ("word", pa.string())])
    with pytest.raises(LakeOptionError, match="column real is double"):
        check_partitionable(schema, ["real"])
    with pytest.raises(LakeOptionError, match="must remain"):
        check_partitionable(pa.schema([("word", pa.string())]), ["word"])
    check_partitionable(schema, ["word"])
