"""The last row of every key, compared with a dictionary."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.spark.lake.changes import check_keys, check_no_null_keys, last_rows, newer, quoted, same_keys
from millpond.spark.lake.errors import LakeError, LakeOptionError

SCHEMA = pa.schema(
    [("a", pa.binary()), ("b", pa.int32()), ("first", pa.int64()), ("second", pa.string()), ("n", pa.int64())]
)
rows = st.lists(
    st.tuples(
        st.sampled_from([b"x", b"y"]),
        st.integers(0, 2),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["p", "q"]),
    ),
    max_size=30,
)


def rank(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name] or 0 if name == "first" else row[name] or "") for name in ORDER)


ORDER = ("first", "second")


@given(rows, st.booleans())
def test_the_last_row_of_every_key(given_rows: list[tuple[Any, ...]], ordered: bool) -> None:
    table = [
        {"a": a, "b": b, "first": first, "second": second, "n": n}
        for n, (a, b, first, second) in enumerate(given_rows)
    ]
    model: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in table:
        key = (row["a"], row["b"])
        if key not in model or not ordered or rank(row) >= rank(model[key]):
            model[key] = row
    result = last_rows(pa.Table.from_pylist(table, SCHEMA), ["a", "b"], ORDER if ordered else ())
    assert sorted(row["n"] for row in result.to_pylist()) == sorted(row["n"] for row in model.values())


def test_keys_are_not_null_and_comparable() -> None:
    check_no_null_keys(pa.table({"a": [1, 2]}), ["a"])
    with pytest.raises(LakeError, match="a row has no a"):
        check_no_null_keys(pa.table({"a": [1, None]}), ["a"])
    with pytest.raises(LakeOptionError, match="column real is double"):
        check_keys(pa.schema([("real", pa.float64())]), ["real"])


def test_names_are_quoted() -> None:
    assert quoted('odd "name"') == '"odd ""name"""'
    assert same_keys(["a", "b c"]) == 'target."a" = source."a" AND target."b c" = source."b c"'
    assert newer([]) == "true"
    assert 'source."a" > target."a"' in newer(["a"])
