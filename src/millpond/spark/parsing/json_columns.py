"""JSON values many at a time, by Arrow's own parser: all of them, or none.

It takes fewer values than json_rows does, and means the same by those that it takes: whoever is refused here asks
there, row by row. Where value_columns has its compiled reader, this is asked about what that refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import types

from millpond.spark.parsing.json_rows import MICROSECONDS_BELOW, MILLISECONDS_BELOW, SECONDS_BELOW
from millpond.wire.kernel.values import VALUE_BYTES_MAX

ROWS_MAX: Final = 50_000
"""Arrow's parser refuses blocks of more than twice that."""
BYTES_MAX: Final = 64 << 20
_BLOCK_MIN: Final = 1 << 16
_ROW: Final = re.compile(r" in row (\d{1,9})$")

Finish: TypeAlias = Callable[[pa.Array], pa.Array]
"""From a column as Arrow's parser read it to the column that Spark expects."""


def has_times(kind: types.DataType) -> bool:
    match kind:
        case types.StructType():
            return any(has_times(each.dataType) for each in kind)
        case types.ArrayType():
            return has_times(kind.elementType)
    return isinstance(kind, types.TimestampType | types.TimestampNTZType)


class Refused(Exception):
    """Not all of the values could be read in this way. `row` is the first of them, where that is known."""

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


class ColumnReader:
    """Reads the values of one schema. `epochs`: times are whole numbers, else text."""

    def __init__(self, kind: types.StructType, target: pa.StructType, *, epochs: bool) -> None:
        self._target = target
        self._columns = [(field.name, _finish(field, each.type)) for field, each in zip(kind, target, strict=True)]
        written = pa.schema([(each.name, _written(each.dataType, epochs)) for each in kind])
        self._options = pj.ParseOptions(
            explicit_schema=written, newlines_in_values=False, unexpected_field_behavior="ignore"
        )

    @staticmethod
    def can_read(kind: types.DataType) -> bool:
        """Maps and base64 are beyond Arrow's parser."""
        match kind:
            case types.StructType():
                return all(ColumnReader.can_read(each.dataType) for each in kind)
            case types.ArrayType():
                return ColumnReader.can_read(kind.elementType)
        return not isinstance(kind, types.MapType | types.BinaryType)

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        """The rows, none of them bad; Refused when one of them may be."""
        if len(values) > ROWS_MAX or values.nbytes > BYTES_MAX:
            raise Refused("too much at once")
        try:
            table = self._table(_lines(values))
            if table.num_rows != len(values):
                raise Refused("a line had more than one object")
            columns = [finish(table.column(name).combine_chunks()) for name, finish in self._columns]
        except pa.ArrowInvalid as fault:
            raise Refused(str(fault), _row_of(fault)) from None
        return pa.StructArray.from_arrays(columns, fields=list(self._target))

    def _table(self, lines: pa.Buffer) -> pa.Table:
        options = pj.ReadOptions(use_threads=False, block_size=max(lines.size + 1, _BLOCK_MIN))
        return pj.read_json(pa.BufferReader(lines), options, self._options)


def _row_of(fault: pa.ArrowInvalid) -> int | None:
    row = _ROW.search(str(fault))
    return int(row[1]) if row else None


def _lines(values: pa.BinaryArray) -> pa.Buffer:
    """The values as lines.

    Each begins and ends with a brace and has no line break, so none can go on in the next: what is left open by one
    is an error, because after a closing brace inside of something a comma or another end must come. Each gives one
    row or more, then, and as many rows as lines mean one each.
    """
    if pc.max(pc.binary_length(values)).as_py() > VALUE_BYTES_MAX:
        raise Refused("a value is too long")
    # Arrow's parser would take bytes that are no text; the cast does not.
    text = pc.ascii_trim(values.cast(pa.string()), " \t\r\n")
    if not (pc.all(pc.starts_with(text, "{")).as_py() and pc.all(pc.ends_with(text, "}")).as_py()):
        raise Refused("a value is no object")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text), "\n")
    lines = joined[0].as_buffer()
    characters = pa.Array.from_buffers(pa.uint8(), lines.size, [None, lines])
    breaks = pc.sum(pc.less(characters, pa.scalar(ord(" "), pa.uint8()))).as_py()
    if (breaks or 0) != len(text) - 1:
        raise Refused("a value has line breaks, tabs or the like")
    return lines


def _written(kind: types.DataType, epochs: bool) -> pa.DataType:
    """What Arrow's parser is told to expect. Not what is required: it would want that inside of nulls, too."""
    match kind:
        case types.StructType():
            return pa.struct([(each.name, _written(each.dataType, epochs)) for each in kind])
        case types.ArrayType():
            return pa.list_(pa.field("element", _written(kind.elementType, epochs)))
        case types.DateType():
            # As a date it would take numbers and no text.
            return pa.string()
        case types.TimestampType() | types.TimestampNTZType():
            return pa.int64() if epochs else pa.timestamp("us")
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind)


def _finish(field: types.StructField, target: pa.DataType) -> Finish:
    inner = _finish_type(field.dataType, target)
    return inner if field.nullable else lambda column: inner(_complete(column, column.is_null()))


def _complete(column: pa.Array, missing: pa.BooleanArray) -> pa.Array:
    if column.null_count and pc.any(missing).as_py():
        raise Refused("a required value is missing")
    return column


def _finish_type(kind: types.DataType, target: pa.DataType) -> Finish:
    match kind:
        case types.StructType():
            return _finish_struct(kind, target)
        case types.ArrayType():
            return _finish_list(_finish_type(kind.elementType, target.value_type), target)
        case types.DateType():
            return lambda column: _not_before_christ(column.cast(target))
        case types.TimestampType() | types.TimestampNTZType():
            return lambda column: _finish_time(column, target)
        case types.DecimalType():
            return _checked_decimal
        case types.FloatType() | types.DoubleType():
            return _finite
    return _same


def _same(column: pa.Array) -> pa.Array:
    return column


def _checked_decimal(column: pa.Array) -> pa.Array:
    """Arrow's parser does not look again at the digits before the point when it adds some behind."""
    column.validate(full=True)
    return column


def _finite(column: pa.Array) -> pa.Array:
    if pc.any(pc.is_inf(column)).as_py():
        raise Refused("too large for its bits, or meant to be infinite")
    return column


def _finish_struct(kind: types.StructType, target: pa.StructType) -> Finish:
    inner = [_finish_type(field.dataType, each.type) for field, each in zip(kind, target, strict=True)]
    required = [index for index, each in enumerate(kind) if not each.nullable]

    def finish(column: pa.StructArray) -> pa.StructArray:
        for index in required:
            child = column.field(index)
            _complete(child, pc.and_(child.is_null(), column.is_valid()))
        columns = [each(column.field(index)) for index, each in enumerate(inner)]
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=column.is_null())

    return finish


def _finish_list(inner: Finish, target: pa.ListType) -> Finish:
    def finish(column: pa.ListArray) -> pa.ListArray:
        # Straight from the parser: nothing is sliced, so the offsets and the values belong together.
        return pa.ListArray.from_arrays(
            column.offsets, inner(column.values), type=target, mask=column.is_null() if column.null_count else None
        )

    return finish


def _finish_time(column: pa.Array, target: pa.TimestampType) -> pa.Array:
    if pa.types.is_integer(column.type):
        column = _from_epochs(column).cast(pa.timestamp("us"))
    return _not_before_christ(column).cast(pa.int64()).cast(target)


_YEAR_ONE: Final = {
    "date32[day]": pa.scalar(-719_162, pa.int32()).cast(pa.date32()),
    "timestamp[us]": pa.scalar(-62_135_596_800_000_000, pa.int64()).cast(pa.timestamp("us")),
}


def _not_before_christ(column: pa.Array) -> pa.Array:
    if pc.any(pc.less(column, _YEAR_ONE[str(column.type)])).as_py():
        raise Refused("a year 0")
    return column


def _from_epochs(column: pa.Int64Array) -> pa.Int64Array:
    """As json_rows.epoch_microseconds, for a column."""
    size = pc.abs_checked(column)

    def below(limit: int) -> Any:
        return pc.less(size, pa.scalar(limit, pa.int64()))

    def times(factor: int) -> Any:
        return pc.multiply(column, pa.scalar(factor, pa.int64()))

    return pc.case_when(
        pc.make_struct(below(SECONDS_BELOW), below(MILLISECONDS_BELOW), below(MICROSECONDS_BELOW)),
        times(1_000_000),
        times(1_000),
        column,
        pc.divide(column, pa.scalar(1_000, pa.int64())),
    )
