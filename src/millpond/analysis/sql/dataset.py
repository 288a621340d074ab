"""A topic as a table of DuckDB's.

DuckDB takes an Arrow dataset: it asks for the schema when a query is planned, and at the start of a scan for a
`scanner` of some columns with a filter. That is where bounds and projection come from. DuckDB does not apply the
filter again, so every batch is filtered here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from millpond.analysis.layout import Bad, Layout
from millpond.analysis.parallel import ParallelReader
from millpond.analysis.ranges import OffsetRange
from millpond.analysis.sql.scan_bounds import pruned
from millpond.analysis.values import ValueForm
from millpond.base.ids import TopicPartition
from millpond.remote import offsets
from millpond.remote.cluster import Cluster
from millpond.remote.offsets import Isolation


@dataclass(slots=True)
class Scan:
    """One read of a table within a query."""

    topic: str
    columns: tuple[str, ...]
    filter: str
    """As Arrow shows it; empty without one."""
    ranges: Sequence[OffsetRange]
    offsets_all: int
    """The offsets of the whole table."""
    is_parsing: bool
    rows_read: int = 0
    """Records read so far, before the filter."""

    @property
    def offsets(self) -> int:
        return sum(each.size for each in self.ranges)


@dataclass(slots=True)
class Scans:
    """What a query read, and what went wrong: DuckDB only passes on the text of an error."""

    settings: Mapping[str, str]
    isolation: Isolation
    threads: int
    is_dry: bool = False
    """Read nothing, only note what would be read."""
    done: list[Scan] = field(default_factory=list)
    fault: BaseException | None = None


class TopicDataset(ds.Dataset):  # type: ignore[misc]
    """The records of one topic up to the moment at which it was looked up."""

    def __init__(
        self, topic: str, form: ValueForm, ranges: Sequence[OffsetRange], scans: Scans, *, key_is_text: bool, bad: Bad
    ) -> None:
        # Arrow's own constructor is not for subclasses; nothing of the base is used but its type.
        self._topic: Final = topic
        self._form = form
        self._ranges = ranges
        self._scans = scans
        self._key_is_text = key_is_text
        self._bad: Bad = bad
        self._schema = self._layout(None).full

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def size(self) -> int:
        """The number of offsets."""
        return sum(each.size for each in self._ranges)

    def whole(self) -> Scan:
        """A scan without bounds."""
        return Scan(self._topic, tuple(self._schema.names), "", self._ranges, self.size, bool(self._form.names))

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> _Scanner:
        """DuckDB calls it with the columns that it wants, in that order, and those that the filter uses."""
        try:
            return self._scanner(list(self._schema.names if columns is None else columns), filter)
        except BaseException as fault:
            self._scans.fault = fault
            raise

    def _scanner(self, columns: list[str], expression: Any) -> _Scanner:
        layout = self._layout(columns)
        if expression is not None and not _is_bound(expression, layout.schema):
            # The filter uses a column that the query does not.
            layout = self._layout([*columns, *(each for each in self._schema.names if each not in columns)])
        ranges = pruned(self._ranges, expression, self._schema, self._at_times)
        scan = Scan(
            self._topic,
            tuple(columns),
            "" if expression is None else str(expression),
            ranges,
            self.size,
            layout.is_parsing,
        )
        self._scans.done.append(scan)
        schema = pa.schema([self._schema.field(each) for each in columns])
        if self._scans.is_dry:
            return _Scanner(pa.RecordBatchReader.from_batches(schema, []))
        batches = self._batches(scan, layout, expression, columns)
        return _Scanner(pa.RecordBatchReader.from_batches(schema, batches))

    def _batches(self, scan: Scan, layout: Layout, expression: Any, columns: list[str]) -> Iterator[pa.RecordBatch]:
        scans = self._scans
        reader = ParallelReader(scans.settings, scan.ranges, layout, scans.isolation, scans.threads)
        try:
            for batch, progress in reader.batches():
                scan.rows_read = progress.rows
                if batch is None:
                    continue
                matching = batch if expression is None else batch.filter(expression)
                if matching.num_rows:
                    yield matching.select(columns)
        except GeneratorExit:
            raise
        except BaseException as fault:
            scans.fault = fault
            raise

    def _layout(self, columns: Sequence[str] | None) -> Layout:
        return Layout(self._form, key_is_text=self._key_is_text, bad=self._bad, columns=columns, mark_always=True)

    def _at_times(self, time_ms: int, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        with Cluster(self._scans.settings) as cluster:
            return offsets.at_times(cluster, dict.fromkeys(partitions, time_ms))


class _Scanner(ds.Scanner):  # type: ignore[misc]
    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader


def _is_bound(expression: Any, schema: pa.Schema) -> bool:
    """Whether the schema has every column of the filter."""
    try:
        pa.RecordBatch.from_pylist([], schema).filter(expression)
    except pa.ArrowInvalid:
        return False
    return True
