"""File statistics for the table's log, from the Parquet footer.

Readers skip files by these numbers, so a wrong bound loses rows, while a missing one only costs time: bounds that
Parquet cannot guarantee are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow.parquet import FileMetaData

COLUMNS_MAX: Final = 32
"""Delta's default of `delta.dataSkippingNumIndexedCols`."""
TEXT_MAX: Final = 32
"""Longer text is truncated: down for the minimum, up for the maximum."""
_HIGHEST: Final = "\U0010ffff"

Path = tuple[str, ...]


def file_statistics(footer: FileMetaData, schema: pa.Schema) -> str:
    """The `stats` of a file's add action, as JSON."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for index, (path, kind) in enumerate(list(_leaves(schema))[:COLUMNS_MAX]):
        if path is None:
            continue
        chunks = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if not chunks or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        _put(nulls, path, sum(chunk.null_count for chunk in chunks))
        bounds = _bounds(chunks, kind)
        if bounds is not None:
            _put(lowest, path, bounds[0])
            _put(highest, path, bounds[1])
    statistics = {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(statistics, separators=(",", ":"), ensure_ascii=False)


def _leaves(schema: pa.Schema) -> Iterator[tuple[Path | None, pa.DataType]]:
    """Every leaf column in Parquet's order; the path is None for repeated ones, which have no statistics."""
    for field in schema:
        yield from _below(field, ())


def _below(field: pa.Field, above: Path | None) -> Iterator[tuple[Path | None, pa.DataType]]:
    path = None if above is None else (*above, field.name)
    kind = field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _below(child, path)
    elif pa.types.is_map(kind):
        yield from _below(kind.key_field, None)
        yield from _below(kind.item_field, None)
    elif pa.types.is_list(kind):
        yield from _below(kind.value_field, None)
    else:
        yield path, kind


def _bounds(chunks: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    # Parquet's bounds of floating-point numbers ignore NaN, which Delta sorts above all others.
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_temporal(kind)):
        return None
    filled = [chunk for chunk in chunks if chunk.num_values > 0]
    if not filled or not all(chunk.has_min_max for chunk in filled):
        return None
    try:
        low, high = min(chunk.min for chunk in filled), max(chunk.max for chunk in filled)
    except (ValueError, OverflowError):
        # Text that is not UTF-8, or a time outside Python's range: the file is fine, its bounds are unknown.
        return None
    if isinstance(high, str) and _HIGHEST in high:
        return None
    return _shown(low), _shown(high, cut=_HIGHEST)


def _shown(value: Any, cut: str = "") -> Any:
    match value:
        case datetime():
            plain = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return plain if value.tzinfo is None else f"{plain}Z"
        case date():
            return value.isoformat()
        case str():
            return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + cut
        case _:
            return value


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
