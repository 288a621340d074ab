"""Rows as JSON objects, written so that `json_rows` reads the same values back.

A decimal with a fraction and binary are text (base64), a time is ISO 8601, and NaN and the infinities are their
names.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa

from millpond.columns.errors import RowError

Change: TypeAlias = Callable[[Any], Any]

_SAME: Final = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_null)
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


class JsonWriter:
    """For rows of one schema. RowError for a type that JSON cannot show."""

    def __init__(self, schema: pa.Schema) -> None:
        self._kinds = [_plain(each.type, each.name) for each in schema]
        self._names = list(schema.names)
        self._changes = [_change(kind, name) for kind, name in zip(self._kinds, self._names, strict=True)]

    def write(self, rows: pa.RecordBatch) -> pa.Array:
        """The objects as a column of text."""
        columns = [self._cells(number, rows.column(name), name) for number, name in enumerate(self._names)]
        return pa.array(
            [
                json.dumps(dict(zip(self._names, row, strict=True)), ensure_ascii=False, separators=(",", ":"))
                for row in zip(*columns, strict=True)
            ],
            pa.string(),
        )

    def _cells(self, number: int, column: pa.Array, name: str) -> list[Any]:
        kind, change = self._kinds[number], self._changes[number]
        try:
            cells: list[Any] = (column if column.type == kind else column.cast(kind, safe=False)).to_pylist()
        except (pa.ArrowException, ValueError, OverflowError) as fault:
            raise RowError(f"column {name} cannot be written as JSON: {str(fault).splitlines()[0][:200]}") from None
        return cells if change is None else [None if each is None else change(each) for each in cells]


def _plain(kind: pa.DataType, name: str) -> pa.DataType:
    """The type to convert to before Python sees the values: in UTC and microseconds, without dictionaries."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, name)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type, f"{name}.{each.name}")) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, name), _plain(kind.item_type, f"{name}{{}}"))
    if _is(kind, _LISTS):
        return pa.list_(_plain(kind.value_type, f"{name}[]"))
    return kind


def _change(kind: pa.DataType, name: str) -> Change | None:
    """From Arrow's Python values to JSON's; None if they are the same."""
    if _is(kind, _SAME) or _is(kind, _TEXTS):
        return None
    if pa.types.is_floating(kind):
        return _number
    if pa.types.is_decimal(kind):
        return int if kind.scale == 0 else str
    if _is(kind, _BYTES):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return lambda value: value.isoformat()
    if pa.types.is_timestamp(kind):
        return _moment if kind.tz else lambda value: value.isoformat()
    if pa.types.is_struct(kind):
        return _object({each.name: _change(each.type, f"{name}.{each.name}") for each in kind})
    if pa.types.is_map(kind) and _is(kind.key_type, _TEXTS):
        return _entries(_change(kind.item_type, f"{name}{{}}"))
    if _is(kind, _LISTS):
        return _elements(_change(kind.value_type, f"{name}[]"))
    raise RowError(f"column {name} of type {kind} cannot be written as JSON: cast it to another type, such as string")


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: Any) -> str:
    return f"{value.replace(tzinfo=None).isoformat()}Z"


def _object(changes: dict[str, Change | None]) -> Change:
    return lambda value: {name: _changed(change, value[name]) for name, change in changes.items()}


def _entries(change: Change | None) -> Change:
    return lambda value: {name: _changed(change, each) for name, each in value}


def _elements(change: Change | None) -> Change:
    return lambda value: [_changed(change, each) for each in value]


def _changed(change: Change | None, value: Any) -> Any:
    return value if value is None or change is None else change(value)


def _is(kind: pa.DataType, tests: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(test(kind) for test in tests)
