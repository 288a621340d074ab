"""Scans batches and records in plain Python: the twin of `_fast`, with the same results and errors."""

from __future__ import annotations

from collections.abc import Callable

from millpond.base.errors import MalformedMessage
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.wire.batch import CorruptBatch, batch_crc, read_header

Headers = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset, timestamp, key, value, headers."""

Digest = Callable[[bytes], bytes]
"""The digest of a long key."""

SHORT_KEY_BYTES = 16
"""Shorter keys are stored verbatim."""

RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, key, value and headers take at least a byte each."""

HEADER_BYTES_MIN = 2

_AFTER_HEAD_BYTES_MIN = 3

_BATCH_HEADER_BYTES = 61
_MAGIC = 2
_INT64_MAX = (1 << 63) - 1
_BASE_OFFSET_MAX = _INT64_MAX - (1 << 31)
"""Beyond this, an offset within a batch may exceed 64 bits."""


class ScannedBatch(NamedTuple):
    """A batch's position in the buffer and its header fields."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def scan(buffer: Buffer, position: int, end: int, verify: bool = False) -> list[ScannedBatch]:
    """The whole, valid batches from `position` on (with `verify`, including CRCs).

    Stops before a partial tail and before a corrupt batch. A corrupt batch right at `position` raises CorruptBatch: a
    scan in pieces continues where the last batch ended and gets the error there.
    """
    batches: list[ScannedBatch] = []
    start = position
    end = min(end, len(buffer))
    while end - position >= _BATCH_HEADER_BYTES:
        header = read_header(buffer, position)
        size = header.size
        fault = ""
        if header.magic != _MAGIC or size < _BATCH_HEADER_BYTES:
            fault = f"magic {header.magic} and size {size}"
        elif size > end - position:
            break
        elif header.base_offset < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
            fault = f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
        elif header.last_offset_delta < 0 or header.base_offset > _INT64_MAX - 1 - header.last_offset_delta:
            fault = f"base offset {header.base_offset}, last offset delta {header.last_offset_delta}"
        elif verify and batch_crc(buffer, position, size) != header.crc:
            fault = "the CRC does not match"
        if fault:
            if position == start:
                raise CorruptBatch(f"{fault} at position {position}")
            break
        batches.append(
            ScannedBatch(
                position,
                size,
                header.base_offset,
                header.base_offset + header.last_offset_delta,
                header.max_timestamp,
                header.leader_epoch,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
            )
        )
        position += size
    return batches


def decode_records(
    payload: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int | None = None
) -> list[RecordFields]:
    """Every record of a decompressed records section. `append_time`, if given, is the timestamp of all of them."""
    data = _checked(payload, count)
    records: list[RecordFields] = []
    at = 0
    offset_delta = -1
    try:
        for _ in range(count):
            end, timestamp_delta, _, offset_delta, at = _head(data, at, offset_delta)
            key, at = _nullable(data, at, end)
            value, at = _nullable(data, at, end)
            header_count, at = _varint(data, at)
            if not 0 <= header_count * HEADER_BYTES_MIN <= end - at:
                raise MalformedMessage(f"{header_count} headers in {end - at} bytes")
            headers: Headers = ()
            if header_count:
                headers, at = _headers(data, at, end, header_count)
            if at != end:
                raise MalformedMessage(f"a record ends at {end}, its fields at {at}")
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            if not -_INT64_MAX - 1 <= timestamp <= _INT64_MAX or base_offset > _INT64_MAX - offset_delta:
                raise MalformedMessage("a record's offset or timestamp is beyond 64 bits")
            records.append((base_offset + offset_delta, timestamp, key, value, headers))
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return records


def record_keys(payload: Buffer, count: int) -> list[tuple[int, bytes | None, bool, int]]:
    """(offset delta, key, has a value, timestamp delta) of every record; headers are skipped."""
    data = _checked(payload, count)
    keys: list[tuple[int, bytes | None, bool, int]] = []
    at = 0
    offset_delta = -1
    try:
        for _ in range(count):
            end, timestamp_delta, _, offset_delta, at = _head(data, at, offset_delta)
            key, at = _nullable(data, at, end)
            length, at = _varint(data, at)
            if length < -1 or max(length, 0) >= end - at:
                raise MalformedMessage(f"a value of {length} bytes in {end - at}")
            keys.append((offset_delta, key, length >= 0, timestamp_delta))
            at = end
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return keys


def keyless_records(payload: Buffer, count: int, most: int) -> list[int]:
    """The indexes of the first `most` records without a key. Fewer mean that all records were read completely."""
    data = _checked(payload, count)
    keyless: list[int] = []
    at = 0
    offset_delta = -1
    try:
        for index in range(count):
            end, _, _, offset_delta, at = _head(data, at, offset_delta)
            length, at = _varint(data, at)
            if length == -1:
                keyless.append(index)
            elif not 0 <= length <= end - at:
                raise MalformedMessage(f"a field of {length} bytes in {end - at}")
            else:
                at += length
            length, at = _varint(data, at)
            if length < -1 or max(length, 0) >= end - at:
                raise MalformedMessage(f"a value of {length} bytes in {end - at}")
            if len(keyless) >= most:
                return keyless
            at = end
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return keyless


def records_outside(
    payload: Buffer, count: int, base_timestamp: int, oldest: int, newest: int, most: int
) -> list[tuple[int, int]]:
    """Index and timestamp of the first `most` records that are older than `oldest` or newer than `newest`.

    A record without a timestamp (-1) is neither.
    """
    data = _checked(payload, count)
    outside: list[tuple[int, int]] = []
    at = 0
    offset_delta = -1
    try:
        for index in range(count):
            end, timestamp_delta, _, offset_delta, _ = _head(data, at, offset_delta)
            timestamp = _timestamp(base_timestamp, timestamp_delta)
            if timestamp != -1 and not oldest <= timestamp <= newest:
                outside.append((index, timestamp))
                if len(outside) >= most:
                    return outside
            at = end
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return outside


def first_not_older(
    payload: Buffer, count: int, base_timestamp: int, timestamp: int, from_delta: int
) -> tuple[int, int] | None:
    """Offset delta and timestamp of the first record from `from_delta` on that is not older than `timestamp`.

    Records after it are not read.
    """
    data = _checked(payload, count)
    at = 0
    offset_delta = -1
    try:
        for _ in range(count):
            end, timestamp_delta, _, offset_delta, _ = _head(data, at, offset_delta)
            own = _timestamp(base_timestamp, timestamp_delta)
            if own >= timestamp and offset_delta >= from_delta:
                return offset_delta, own
            at = end
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return None


def latest_record(payload: Buffer, count: int, base_timestamp: int, from_delta: int) -> tuple[int, int] | None:
    """Offset delta and timestamp of the first record from `from_delta` on with the largest timestamp."""
    data = _checked(payload, count)
    latest: tuple[int, int] | None = None
    at = 0
    offset_delta = -1
    try:
        for _ in range(count):
            end, timestamp_delta, _, offset_delta, _ = _head(data, at, offset_delta)
            own = _timestamp(base_timestamp, timestamp_delta)
            if offset_delta >= from_delta and (latest is None or own > latest[1]):
                latest = offset_delta, own
            at = end
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return latest


def note_keys(payload: Buffer, count: int, base_offset: int, offsets: dict[bytes, int], digest: Digest) -> None:
    """Store the offset of every record with a key in `offsets`, later ones over earlier ones.

    A key of `SHORT_KEY_BYTES` or more is stored as its digest. A malformed batch stores nothing.
    """
    _check_base(base_offset)
    for delta, key, _, _ in record_keys(payload, count):
        if key is not None:
            offsets[key if len(key) < SHORT_KEY_BYTES else digest(key)] = base_offset + delta


def flag_latest(
    payload: Buffer, count: int, base_offset: int, offsets: dict[bytes, int], digest: Digest
) -> tuple[list[bool], bool]:
    """Which records have a key without a later one in `offsets`, and whether one of these is a tombstone."""
    _check_base(base_offset)
    flags: list[bool] = []
    has_tombstone = False
    for delta, key, has_value, _ in record_keys(payload, count):
        is_latest = False
        if key is not None:
            short_key = key if len(key) < SHORT_KEY_BYTES else digest(key)
            is_latest = offsets.get(short_key, -1) <= base_offset + delta
        flags.append(is_latest)
        has_tombstone = has_tombstone or (is_latest and not has_value)
    return flags, has_tombstone


def flagged_records(payload: Buffer, count: int, flags: list[bool]) -> tuple[bytes, int, int]:
    """The flagged records concatenated, their number, and their largest timestamp delta (0 for none)."""
    spans = record_spans(payload, count)
    if len(flags) != len(spans):
        raise ValueError(f"{len(flags)} flags for {count} records")
    view = memoryview(payload)
    kept = [span for span, is_flagged in zip(spans, flags, strict=True) if is_flagged]
    joined = b"".join([view[start:end] for start, end, _, _ in kept])
    return joined, len(kept), max((delta for _, _, delta, _ in kept), default=0)


def record_spans(payload: Buffer, count: int) -> list[tuple[int, int, int, int]]:
    """(start, end, timestamp delta, position after it) of every record: enough to copy it or shift its time."""
    data = _checked(payload, count)
    spans: list[tuple[int, int, int, int]] = []
    at = 0
    offset_delta = -1
    try:
        for _ in range(count):
            start = at
            end, timestamp_delta, after_timestamp, offset_delta, at = _head(data, at, offset_delta)
            spans.append((start, end, timestamp_delta, after_timestamp))
            at = end
    except IndexError:
        raise MalformedMessage("a record is cut off") from None
    _check_end(data, at)
    return spans


def _checked(payload: Buffer, count: int) -> bytes:
    if not 0 <= count * RECORD_BYTES_MIN <= len(payload):
        raise MalformedMessage(f"{count} records in {len(payload)} bytes")
    return bytes(payload)


def _timestamp(base_timestamp: int, delta: int) -> int:
    timestamp = base_timestamp + delta
    if not -_INT64_MAX - 1 <= timestamp <= _INT64_MAX:
        raise MalformedMessage("a record's timestamp is beyond 64 bits")
    return timestamp


def _check_base(base_offset: int) -> None:
    if base_offset > _BASE_OFFSET_MAX:
        raise MalformedMessage("a record's offset may be beyond 64 bits")


def _check_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise MalformedMessage(f"{len(data) - at} bytes are left after the last record")


def _head(data: bytes, at: int, previous_delta: int) -> tuple[int, int, int, int, int]:
    """The end of the record at `at`, its timestamp delta and where that ends, its offset delta and where that
    ends."""
    length, at = _varint(data, at)
    if not RECORD_BYTES_MIN - 1 <= length <= len(data) - at:
        raise MalformedMessage(f"a record of {length} bytes in {len(data) - at}")
    end = at + length
    # Record attributes have no meaning yet.
    timestamp_delta, after_timestamp = _varlong(data, at + 1)
    offset_delta, at = _varint(data, after_timestamp)
    if offset_delta <= previous_delta:
        raise MalformedMessage(f"offset delta {offset_delta} after {previous_delta}")
    if end - at < _AFTER_HEAD_BYTES_MIN:
        raise MalformedMessage(f"{end - at} bytes for key, value and headers")
    return end, timestamp_delta, after_timestamp, offset_delta, at


def _nullable(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length == -1:
        return None, at
    if not 0 <= length <= end - at:
        raise MalformedMessage(f"a field of {length} bytes in {end - at}")
    return data[at : at + length], at + length


def _headers(data: bytes, at: int, end: int, count: int) -> tuple[Headers, int]:
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _nullable(data, at, end)
        if name is None:
            raise MalformedMessage("a header without a name")
        value, at = _nullable(data, at, end)
        # Clients may write any bytes: an unreadable name must not cost the reader the whole batch.
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A 32-bit zigzag varint and where it ends."""
    byte = data[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    raw, at = _varint_tail(data, at, 5)
    if raw >> 32:
        raise MalformedMessage("a varint is beyond 32 bits")
    return raw >> 1 ^ -(raw & 1), at


def _varlong(data: bytes, at: int) -> tuple[int, int]:
    """A 64-bit zigzag varint and where it ends."""
    byte = data[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    raw, at = _varint_tail(data, at, 10)
    if raw >> 64:
        raise MalformedMessage("a varint is beyond 64 bits")
    return raw >> 1 ^ -(raw & 1), at


def _varint_tail(data: bytes, at: int, bytes_max: int) -> tuple[int, int]:
    raw = 0
    for index in range(bytes_max):
        byte = data[at + index]
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return raw, at + index + 1
    raise MalformedMessage(f"a varint has more than {bytes_max} bytes")
