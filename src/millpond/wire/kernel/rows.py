"""Rows of columns into records, in plain Python: the twin of `_rows`, with the same results and errors.

Columns are the buffers of Arrow arrays, sliced or not, and are not trusted: every offset is checked against the
available bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from millpond.base.ports import Buffer
from millpond.wire.partitioner import partition_for_key

RECORD_BYTES_MAX = (1 << 31) - 1
ROWS_MAX = (1 << 31) - 1
NULL_KEY = -1
"""The partition of a null key: any is valid."""

_NULL_FIELD = b"\x01"
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """A binary or string array with 32-bit offsets. Row 0 is the array's entry `start`, its slice offset."""

    start: int
    offsets: Buffer | None
    data: Buffer | None
    validity: Buffer | None = None


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """A list array of (name, value) structs. `names` and `values` start at entry 0 of the structs."""

    start: int
    offsets: Buffer | None
    validity: Buffer | None
    names: BinaryColumn
    values: BinaryColumn


@dataclass(frozen=True, slots=True)
class TimestampColumn:
    """Milliseconds in 64 bits."""

    start: int
    data: Buffer | None
    validity: Buffer | None = None


@dataclass(frozen=True, slots=True)
class RowColumns:
    """A missing column is null in every row."""

    count: int
    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeaderColumn | None = None
    timestamps: TimestampColumn | None = None


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """A records section for `wire.records.wrap_payload`, and the number of selected rows in it."""

    payload: bytes
    taken: int
    base_timestamp: int
    max_timestamp: int


def key_partitions(key: BinaryColumn, count: int, partitions: int) -> Buffer:
    """The partition (32 bits) of each of the first `count` keys, as Java clients choose it; -1 for a null key."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    column = _Binary(key, count)
    keys = map(column.field, range(count))
    return array("i", [NULL_KEY if each is None else partition_for_key(each, partitions) for each in keys]).tobytes()


def encode_rows(rows: RowColumns, selection: Buffer, at: int, bytes_max: int, timestamp_ms: int) -> EncodedRows:
    """The rows that `selection` (32 bits each) lists from its entry `at` on, in that order, as v2 records.

    Stops before the payload exceeds `bytes_max`, but takes at least one row. `timestamp_ms` is the default timestamp.
    """
    chosen = memoryview(selection).cast("B")
    if len(chosen) % 4 or not 0 <= at < len(chosen) // 4:
        raise ValueError(f"nothing is selected at {at} in {len(chosen)} bytes")
    table = _Table(rows, timestamp_ms)
    parts: list[bytes] = []
    size = 0
    base_timestamp = max_timestamp = 0
    for row in chosen.cast("i")[at:]:
        if not 0 <= row < rows.count:
            raise ValueError(f"row {row} of {rows.count} was selected")
        timestamp = table.timestamp(row)
        if not parts:
            base_timestamp = max_timestamp = timestamp
        record = _record(table, row, timestamp - base_timestamp, len(parts))
        if parts and size + len(record) > bytes_max:
            break
        parts.append(record)
        size += len(record)
        max_timestamp = max(max_timestamp, timestamp)
    return EncodedRows(b"".join(parts), len(parts), base_timestamp, max_timestamp)


class _Validity:
    """Which entries are not null."""

    def __init__(self, bits: Buffer | None, start: int, count: int) -> None:
        if not 0 <= start <= ROWS_MAX or not 0 <= count <= ROWS_MAX:
            raise ValueError(f"{count} rows from {start}")
        self.bits = None if bits is None else memoryview(bits).cast("B")
        if self.bits is not None and len(self.bits) * 8 < start + count:
            raise ValueError(f"{len(self.bits)} bytes of validity for {start + count} rows")

    def has(self, entry: int) -> bool:
        return self.bits is None or self.bits[entry >> 3] >> (entry & 7) & 1 == 1


class _Spans:
    """The spans of an array's 32-bit offsets within something of `size`; None for a null entry."""

    def __init__(self, start: int, offsets: Buffer | None, validity: Buffer | None, count: int, size: int) -> None:
        self.start = start
        self.size = size
        self.validity = _Validity(validity, start, count)
        raw = _bytes(offsets)
        if count and len(raw) // 4 < start + count + 1:
            raise ValueError(f"{len(raw)} bytes of offsets for {start + count} rows")
        self.offsets = raw[: len(raw) // 4 * 4].cast("i")

    def span(self, row: int) -> tuple[int, int] | None:
        entry = self.start + row
        if not self.validity.has(entry):
            return None
        begin, end = self.offsets[entry], self.offsets[entry + 1]
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"offsets {begin} and {end} in {self.size}")
        return begin, end


class _Binary:
    def __init__(self, column: BinaryColumn, count: int) -> None:
        self.data = _bytes(column.data)
        self.spans = _Spans(column.start, column.offsets, column.validity, count, len(self.data))

    def field(self, row: int) -> bytes | None:
        span = self.spans.span(row)
        return None if span is None else bytes(self.data[span[0] : span[1]])


class _Headers:
    def __init__(self, column: HeaderColumn, count: int) -> None:
        # Only the last offset shows how many structs there are.
        lists = _Spans(column.start, column.offsets, column.validity, count, ROWS_MAX)
        structs = lists.offsets[column.start + count] if count else 0
        self.lists = _Spans(column.start, column.offsets, column.validity, count, max(structs, 0))
        self.names = _Binary(column.names, max(structs, 0))
        self.values = _Binary(column.values, max(structs, 0))

    def pairs(self, row: int) -> Iterator[tuple[bytes, bytes | None]]:
        for entry in range(*(self.lists.span(row) or (0, 0))):
            name = self.names.field(entry)
            if name is None:
                raise ValueError(f"row {row} has a header without a name")
            yield name, self.values.field(entry)


class _Table:
    """The columns of `RowColumns`, with their lengths checked."""

    def __init__(self, rows: RowColumns, timestamp_ms: int) -> None:
        self.key = rows.key and _Binary(rows.key, rows.count)
        self.value = rows.value and _Binary(rows.value, rows.count)
        self.headers = rows.headers and _Headers(rows.headers, rows.count)
        self.timestamp_ms = timestamp_ms
        self.times = rows.timestamps
        if self.times is not None:
            raw = _bytes(self.times.data)
            self.timed = _Validity(self.times.validity, self.times.start, rows.count)
            if len(raw) // 8 < self.times.start + rows.count:
                raise ValueError(f"{len(raw)} bytes of timestamps for {self.times.start + rows.count} rows")
            self.milliseconds = raw[: len(raw) // 8 * 8].cast("q")

    def timestamp(self, row: int) -> int:
        if self.times is None or not self.timed.has(self.times.start + row):
            return self.timestamp_ms
        return self.milliseconds[self.times.start + row]


def _record(table: _Table, row: int, timestamp_delta: int, offset_delta: int) -> bytes:
    if not -_INT64_MAX - 1 <= timestamp_delta <= _INT64_MAX:
        raise OverflowError("the timestamps of one batch are too far apart")
    parts = [b"\x00", _varint(timestamp_delta), _varint(offset_delta)]
    parts += _field(table.key.field(row) if table.key else None)
    parts += _field(table.value.field(row) if table.value else None)
    headers = list(table.headers.pairs(row)) if table.headers else []
    parts.append(_varint(len(headers)))
    for name, value in headers:
        parts += (*_field(name), *_field(value))
    length = sum(map(len, parts))
    if length > RECORD_BYTES_MAX:
        raise OverflowError(f"row {row} is a record of {length} bytes; {RECORD_BYTES_MAX} is the most")
    return b"".join([_varint(length), *parts])


def _bytes(buffer: Buffer | None) -> memoryview:
    """Arrow omits empty buffers."""
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _field(field: bytes | None) -> tuple[bytes, ...]:
    return (_NULL_FIELD,) if field is None else (_varint(len(field)), field)


def _varint(value: int) -> bytes:
    """A zigzag varint of up to 64 bits."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
