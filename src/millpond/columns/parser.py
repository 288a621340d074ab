"""The parser: a compiled reader for whole columns, and a row reader for values it refuses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.columns import avro_rows, json_rows, types
from millpond.columns.errors import Fault, SchemaError
from millpond.columns.schemas import inline_schema, nullable, read_json, read_schema
from millpond.columns.value_columns import ValueColumns
from millpond.wire.kernel.values import VALUE_BYTES_MAX

FORMATS: Final = ("json", "avro")
ROWS_MAX: Final = 4096
"""Values converted to Python objects at a time, which take many times the memory."""
TEXT_BYTES_MAX: Final = 1 << 30
"""The most text from one call: a column's offsets have 31 bits."""
MISFITS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""Arrow's errors for a value that its column cannot hold."""


@dataclass(slots=True)
class Parsed:
    rows: pa.StructArray
    """One row for each value; null where the value is bad, or null itself."""
    faults: list[tuple[int, str]]
    """The bad rows in order, with reasons."""


class Parser:
    """Reads values of one format by one schema. Thread-safe and shared within a process."""

    def __init__(
        self,
        format: str,
        schema: str | types.StructType,
        *,
        prefixed: bool = False,
        plain: bool = False,
        only: Collection[str] | None = None,
    ) -> None:
        """`schema`: Spark's notation, Spark's JSON, an Avro schema, a JSON Schema, or a file that has one; for JSON
        also the type itself.

        `prefixed`: Avro values have a schema registry's prefix, which is skipped. `plain`: do not use the compiled
        reader; the results are the same, only slower. `only`: of JSON, parse just these fields.
        """
        if format not in FORMATS:
            raise SchemaError(f"values are read as one of {', '.join(FORMATS)}, not {format!r}")
        text = "" if isinstance(schema, types.StructType) else inline_schema(schema)
        kind = schema if isinstance(schema, types.StructType) else read_schema(text)
        if only is not None and format == "json":
            kind = types.StructType([each for each in kind if each.name in only])
        column = nullable(kind)
        assert isinstance(column, types.StructType)
        self.type: Final = column
        """The type of the column, with everything nullable."""
        self.arrow_type: Final = column.arrow()
        self._growth = 1
        self._compiled: ValueColumns | None = None
        if format == "avro":
            described = read_json(text) if text.lstrip().startswith("{") else {}
            if described.get("type") != "record":
                raise SchemaError("Avro values are read by an Avro schema (JSON, or a file *.avsc)")
            parsed = avro_rows.parsed_schema(described)
            # One byte of an enum value becomes the symbol's text.
            self._growth = avro_rows.longest_symbol(parsed)
            self._written: pa.DataType = avro_rows.arrow_written(kind)
            self._read_row: Callable[[bytes], dict[str, Any]] = avro_rows.row_reader(parsed, kind, prefixed=prefixed)
            skipped = avro_rows.CONFLUENT_BYTES if prefixed else 0
            if not plain:
                self._compiled = ValueColumns.of_avro(parsed, kind, self.arrow_type, skipped=skipped)
            return
        self._written = self.arrow_type
        self._read_row = json_rows.row_reader(kind)
        if not plain:
            self._compiled = ValueColumns.of_json(kind, self.arrow_type)

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def is_too_much(self, values: pa.BinaryArray) -> bool:
        """Whether the parsed values may exceed the capacity of one column: then `parse` half of them."""
        return len(values) > 1 and values.nbytes * self._growth > TEXT_BYTES_MAX

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch, split where its parsed values may exceed a column's capacity."""
        if self.is_too_much(batch.column("value")):
            half = batch.num_rows // 2
            yield from self.parts(batch.slice(0, half))
            yield from self.parts(batch.slice(half))
        else:
            yield batch

    def parse(self, values: pa.BinaryArray) -> Parsed:
        if self._compiled is None:
            return self._parse_plain(values)
        rows, refused = self._compiled.read(values)
        if not refused:
            return Parsed(rows, [])
        careful = self._parse_plain(values.take(pa.array(refused, pa.int64())))
        faults = [(refused[row], reason) for row, reason in careful.faults]
        if len(faults) < len(refused):
            rows = _replaced(rows, refused, careful.rows)
        return Parsed(rows, faults)

    def _parse_plain(self, values: pa.BinaryArray) -> Parsed:
        """Parse without the compiled reader, with the same results and reasons."""
        there = values.drop_null() if values.null_count else values
        faults: list[tuple[int, str]] = []
        starts = range(0, max(len(there), 1), ROWS_MAX)
        rows = pa.concat_arrays([self._read_rows(there.slice(each, ROWS_MAX), each, faults) for each in starts])
        if values.null_count:
            rows, indices = _spread(rows, values)
            faults = [(indices[row], reason) for row, reason in faults]
        return Parsed(rows, faults)

    def _read_rows(self, values: pa.BinaryArray, first: int, faults: list[tuple[int, str]]) -> pa.StructArray:
        rows: list[dict[str, Any] | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._checked(value))
            except Fault as fault:
                faults.append((first + row, str(fault)))
                rows.append(None)
        try:
            return self._as_column(rows)
        except MISFITS:
            return self._without_misfits(rows, first, faults)

    def _checked(self, value: bytes) -> dict[str, Any]:
        if len(value) > VALUE_BYTES_MAX:
            raise Fault(f"the value has {len(value):,} bytes; at most {VALUE_BYTES_MAX:,} are read")
        return self._read_row(value)

    def _as_column(self, rows: list[dict[str, Any] | None]) -> pa.StructArray:
        column = pa.array(rows, self._written)
        if isinstance(column, pa.ChunkedArray):
            raise pa.ArrowCapacityError("more text than a column can hold")
        return column if self._written == self.arrow_type else column.cast(self.arrow_type)

    def _without_misfits(
        self, rows: list[dict[str, Any] | None], first: int, faults: list[tuple[int, str]]
    ) -> pa.StructArray:
        """For rare well-formed values that fit no column, such as an Avro year 200,000."""
        for number, row in enumerate(rows):
            try:
                self._as_column([row])
            except MISFITS as fault:
                rows[number] = None
                faults.append((first + number, f"does not fit: {str(fault).splitlines()[0][:200]}"))
        faults.sort()
        return self._as_column(rows)


def _replaced(rows: pa.StructArray, at: list[int], others: pa.StructArray) -> pa.StructArray:
    """The rows with those at `at` replaced by `others`."""
    places = np.arange(len(rows))
    places[at] = np.arange(len(rows), len(rows) + len(others))
    return pa.concat_arrays([rows, others]).take(pa.array(places))


def _spread(rows: pa.StructArray, values: pa.BinaryArray) -> tuple[pa.StructArray, list[int]]:
    """The rows with nulls inserted where `values` is null, and the new index of each row."""
    is_there = values.is_valid()
    behind = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
    taken = rows.take(pc.if_else(is_there, behind, pa.scalar(None, pa.int64())))
    return taken, pc.indices_nonzero(is_there).to_pylist()
