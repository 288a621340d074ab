"""A summary of a write's rows in the table's log, to recognize a repeated write.

It has the number of rows, and the nulls and bounds of each column, which do not depend on how rows are split into
files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.spark.lake.files import WrittenFile


def summary_of_files(files: Sequence[WrittenFile]) -> str:
    """The summary from the files' existing statistics."""
    rows: Counter[str] = Counter()
    nulls: Counter[str] = Counter()
    bounds: dict[str, list[Any]] = {}
    unknown: set[str] = set()
    for file in files:
        statistics = json.loads(file.statistics)
        rows[json.dumps(file.partition_values, sort_keys=True)] += statistics["numRecords"]
        lowest, highest = (dict(_leaves(statistics[name])) for name in ("minValues", "maxValues"))
        for column, count in _leaves(statistics["nullCount"]):
            nulls[column] += count
            if column in lowest:
                low, high = bounds.setdefault(column, [lowest[column], highest[column]])
                bounds[column] = [min(low, lowest[column]), max(high, highest[column])]
            elif count < statistics["numRecords"]:
                unknown.add(column)
    known_bounds = {column: each for column, each in bounds.items() if column not in unknown}
    return _text(rows.total(), nulls, known_bounds, dict(rows))


def summary_of_table(rows: pa.Table) -> str:
    """The summary of rows in memory, one for each key."""
    import pyarrow.compute as pc

    bounds = {}
    for name in rows.column_names:
        try:
            bounds[name] = list(map(str, pc.min_max(rows.column(name)).as_py().values()))
        except pa.ArrowNotImplementedError:
            continue
    return _text(rows.num_rows, {name: rows.column(name).null_count for name in rows.column_names}, bounds, {})


def rows_in(summary: str) -> int:
    return int(json.loads(summary)["rows"])


def _text(rows: int, nulls: Mapping[str, int], bounds: Mapping[str, list[Any]], partitions: Mapping[str, int]) -> str:
    return json.dumps({"rows": rows, "nulls": nulls, "bounds": bounds, "partitions": partitions}, sort_keys=True)


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield above + name, value
