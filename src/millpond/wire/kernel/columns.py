"""Records into columns, in plain Python: the twin of `_columns`, with the same results and errors.

The results are native-endian buffers in Arrow's layout, ready for `pyarrow.Array.from_buffers`; neither twin needs
pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from millpond.base.errors import MalformedMessage
from millpond.base.ports import Buffer
from millpond.wire.kernel.plain import Headers, RecordFields, decode_records

COLUMN_MAX = (1 << 31) - 1
"""The limit of Arrow's 32-bit offsets, and so of the bytes, headers and rows of one builder."""

MICROSECONDS_PER_MS = 1_000

_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BinaryBuffers:
    """A binary or string array; `validity` is None without nulls, `offsets` are 32 bits."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer
    null_count: int


@dataclass(frozen=True, slots=True)
class HeaderBuffers:
    """A list of (name, value) per row. A row without headers is null, not empty, as in Spark's Kafka source."""

    list_validity: Buffer | None
    list_null_count: int
    list_offsets: Buffer
    count: int
    names: BinaryBuffers
    values: BinaryBuffers


@dataclass(frozen=True, slots=True)
class Columns:
    rows: int
    key: BinaryBuffers
    value: BinaryBuffers
    offsets: Buffer
    """64 bits."""
    timestamps: Buffer
    """64 bits, microseconds. A record without a timestamp (-1 ms) has -1,000 here, as in Spark's Kafka source."""
    timestamp_types: Buffer
    """32 bits: 0 is the creation time, 1 the append time."""
    headers: HeaderBuffers | None


class ColumnBuilder:
    """Collects the records of many batches. A call that raises leaves the builder as it was."""

    def __init__(self, with_headers: bool = False, column_max: int = COLUMN_MAX) -> None:
        if not 0 <= column_max <= COLUMN_MAX:
            raise ValueError(f"a column of up to {column_max} bytes; Arrow's offsets reach {COLUMN_MAX}")
        self._with_headers = with_headers
        self._column_max = column_max
        self._fields: list[RecordFields] = []
        self._types = array("i")
        self._sizes = [0, 0, 0, 0]
        self._header_count = 0

    @property
    def rows(self) -> int:
        return len(self._fields)

    @property
    def data_bytes(self) -> int:
        """The bytes of keys, values and headers collected so far."""
        return sum(self._sizes)

    def add(
        self,
        payload: Buffer,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None,
        first: int,
        end: int,
    ) -> int:
        """Add the records of a decompressed records section with offsets in [first, end); their number.

        `append_time` is the timestamp of all of them, if given. Every record is checked, in the range or not.
        """
        records = decode_records(payload, count, base_offset, base_timestamp, append_time)
        selected = [fields for fields in records if first <= fields[0] < end]
        for fields in selected:
            if not -_INT64_MAX <= fields[1] * MICROSECONDS_PER_MS <= _INT64_MAX:
                raise MalformedMessage("a record's timestamp in microseconds is beyond 64 bits")
        sizes = [sum(pair) for pair in zip(self._sizes, self._sizes_of(selected), strict=True)]
        rows = len(self._fields) + len(selected)
        headers = self._header_count + sum(len(fields[4]) for fields in selected) * self._with_headers
        if max(*sizes, headers, rows) > self._column_max:
            raise OverflowError(f"a column would grow beyond {self._column_max} bytes: take() what is there first")
        self._fields += selected
        self._types.extend([append_time is not None] * len(selected))
        self._sizes = sizes
        self._header_count = headers
        return len(selected)

    def take(self) -> Columns:
        """The collected columns; resets the builder."""
        fields, types = self._fields, self._types
        self._fields, self._types = [], array("i")
        self._sizes = [0, 0, 0, 0]
        self._header_count = 0
        return Columns(
            rows=len(fields),
            key=_binary([each[2] for each in fields]),
            value=_binary([each[3] for each in fields]),
            offsets=array("q", [each[0] for each in fields]).tobytes(),
            timestamps=array("q", [each[1] * MICROSECONDS_PER_MS for each in fields]).tobytes(),
            timestamp_types=types.tobytes(),
            headers=_lists([each[4] for each in fields]) if self._with_headers else None,
        )

    def _sizes_of(self, records: list[RecordFields]) -> tuple[int, int, int, int]:
        """The bytes of keys, values, header names and header values."""
        headers = [pair for fields in records for pair in fields[4]] if self._with_headers else []
        return (
            sum(len(fields[2] or b"") for fields in records),
            sum(len(fields[3] or b"") for fields in records),
            sum(len(name.encode()) for name, _ in headers),
            sum(len(value or b"") for _, value in headers),
        )


def _binary(fields: Sequence[bytes | None]) -> BinaryBuffers:
    validity, null_count = _validity([field is None for field in fields])
    offsets = array("i", accumulate((len(field or b"") for field in fields), initial=0))
    return BinaryBuffers(validity, offsets.tobytes(), b"".join([field or b"" for field in fields]), null_count)


def _lists(rows: Sequence[Headers]) -> HeaderBuffers:
    validity, null_count = _validity([not headers for headers in rows])
    pairs = [pair for headers in rows for pair in headers]
    return HeaderBuffers(
        list_validity=validity,
        list_null_count=null_count,
        list_offsets=array("i", accumulate(map(len, rows), initial=0)).tobytes(),
        count=len(pairs),
        names=_binary([name.encode() for name, _ in pairs]),
        values=_binary([value for _, value in pairs]),
    )


def _validity(nulls: Sequence[bool]) -> tuple[bytes | None, int]:
    """A bit per row, lowest first, 1 for a value. The bits after the last row are 1 too."""
    null_count = sum(nulls)
    if not null_count:
        return None, 0
    bits = bytearray(b"\xff" * ((len(nulls) + 7) // 8))
    for row, is_null in enumerate(nulls):
        if is_null:
            bits[row >> 3] &= ~(1 << (row & 7))
    return bytes(bits), null_count
