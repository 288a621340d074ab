"""The records inside a batch: decoding them, encoding them, and rewriting a batch with fewer of them.

The broker's hot way never comes here; compaction, the coordinators' own records, tools and clients do. Nothing here
looks at a batch's CRC: that is `batch.check_batch`, once, where bytes enter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress as flagged

from millpond.base.errors import MalformedMessage
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.wire import kernel
from millpond.wire.batch import (
    CODEC_MASK,
    CONTROL,
    HAS_DELETE_HORIZON,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    TIMESTAMP_LOG_APPEND,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from millpond.wire.checksum import crc32c
from millpond.wire.compression import compress, decompress
from millpond.wire.kernel.plain import Digest

DECOMPRESSED_BYTES_MAX = 128 << 20
"""What one batch may grow to unless the caller says otherwise."""

NO_TIMESTAMP = -1

_BEFORE_CRC = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")
_NULL = b"\x01"


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


# A NamedTuple's own constructor costs more than decoding the record does.
_as_record: Callable[[tuple[object, ...]], Record] = partial(tuple.__new__, Record)


def decode_batch(buffer: Buffer, position: int = 0, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """The records of the batch at `position`, with their offsets and timestamps worked out."""
    header = read_header(buffer, position)
    payload = records_section(buffer, position, header, limit_bytes=limit_bytes)
    append_time = header.max_timestamp if header.is_append_time else None
    fields = kernel.decode_records(
        payload, header.record_count, header.base_offset, header.base_timestamp, append_time
    )
    return list(map(_as_record, fields))


def batch_keys(
    buffer: Buffer, position: int = 0, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> list[tuple[int, bytes | None, bool, int]]:
    """(offset delta, key, has a value, timestamp delta) of every record of the batch at `position`."""
    header = read_header(buffer, position)
    return kernel.record_keys(records_section(buffer, position, header, limit_bytes=limit_bytes), header.record_count)


def note_keys(buffer: Buffer, offsets: dict[bytes, int], digest: Digest, *, limit_bytes: int) -> None:
    """Write the offset of every key of the batch into `offsets`, the later over the earlier.

    A key of `SHORT_KEY_BYTES` or more stands there as its digest. Of a batch that is malformed nothing is written.
    """
    header = read_header(buffer)
    section = records_section(buffer, 0, header, limit_bytes=limit_bytes)
    kernel.note_keys(section, header.record_count, header.base_offset, offsets, digest)


def flag_latest(
    buffer: Buffer, offsets: dict[bytes, int], digest: Digest, *, limit_bytes: int
) -> tuple[list[bool], bool]:
    """Which records of the batch have a key of which `offsets` knows no later one; whether one of these is without a
    value."""
    header = read_header(buffer)
    section = records_section(buffer, 0, header, limit_bytes=limit_bytes)
    return kernel.flag_latest(section, header.record_count, header.base_offset, offsets, digest)


def records_section(
    buffer: Buffer, position: int, header: BatchHeader, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Buffer:
    """The bytes after the batch's header, decompressed; without compression a view, not a copy."""
    _check_fits(buffer, position, header)
    section = memoryview(buffer)[position + HEADER_BYTES : position + header.size]
    return decompress(header.codec, section, limit_bytes) if header.codec else section


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch of `records`, each at its own offset (ascending, from `base_offset` on, holes allowed).

    `last_offset_delta` is that of the last record unless given, as it must be when offsets at the end, or all
    records, are gone.
    """
    attributes = codec
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    attributes |= TIMESTAMP_LOG_APPEND if append_time_ms is not None else 0
    attributes |= HAS_DELETE_HORIZON if delete_horizon_ms is not None else 0
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    if append_time_ms is not None:
        max_timestamp = append_time_ms
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset
    payload = b"".join([_encode_record(record, base_offset, base_timestamp) for record in records])
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return _assemble(header, payload)


def wrap_payload(
    payload: Buffer,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch around `count` records that are encoded already, at offsets 0, 1, 2 …"""
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL if transactional else 0),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )
    return _assemble(header, payload)


def retained(
    buffer: Buffer,
    position: int,
    keep_flags: Sequence[bool],
    delete_horizon_ms: int | None = None,
    *,
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bytes | None:
    """The batch with only the flagged records, None when nothing stays, its own bytes when everything does.

    Base and last offset, producer fields and codec stay, so that sequence numbers remain known after compaction.
    `delete_horizon_ms` is set on a batch that has none; one that is set stays as it was.
    """
    header = read_header(buffer, position)
    _check_fits(buffer, position, header)
    assert len(keep_flags) == header.record_count, (len(keep_flags), header.record_count)
    if not any(keep_flags):
        return None
    sets_horizon = delete_horizon_ms is not None and header.delete_horizon_ms is None
    if all(keep_flags) and not sets_horizon:
        return bytes(memoryview(buffer)[position : position + header.size])
    section = memoryview(records_section(buffer, position, header, limit_bytes=limit_bytes))
    kept, number, latest_delta = kernel.flagged_records(section, header.record_count, list(keep_flags))
    if not header.is_append_time:
        header = header._replace(max_timestamp=_checked_int64(header.base_timestamp + latest_delta))
    header = header._replace(record_count=number)
    if delete_horizon_ms is None or not sets_horizon:
        return _assemble(header, kept)
    # The horizon stands where the base timestamp stood, so every record's distance to it changes.
    shift = header.base_timestamp - delete_horizon_ms
    parts: list[Buffer] = []
    for _, end, timestamp_delta, after_timestamp in flagged(
        kernel.record_spans(section, len(keep_flags)), keep_flags
    ):
        moved = b"\x00" + _varint(_checked_int64(timestamp_delta + shift))
        parts += (_varint(len(moved) + end - after_timestamp), moved, section[after_timestamp:end])
    attributes = header.attributes | HAS_DELETE_HORIZON
    return _assemble(header._replace(base_timestamp=delete_horizon_ms, attributes=attributes), b"".join(parts))


def emptied(buffer: Buffer, position: int = 0) -> bytes:
    """The batch without any record: what compaction leaves of a producer's last batch to remember its sequence."""
    header = read_header(buffer, position)
    attributes = header.attributes & ~CODEC_MASK & ~HAS_DELETE_HORIZON
    return _assemble(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _check_fits(buffer: Buffer, position: int, header: BatchHeader) -> None:
    if header.magic != MAGIC or not HEADER_BYTES <= header.size <= len(buffer) - position:
        raise MalformedMessage(f"magic {header.magic} and size {header.size} in {len(buffer) - position} bytes")


def _checked_int64(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise MalformedMessage("a timestamp is beyond 64 bits")
    return value


def _assemble(header: BatchHeader, payload: Buffer) -> bytes:
    """A whole batch of `header` and the uncompressed `payload`; length and CRC are worked out here."""
    if header.codec:
        payload = compress(header.codec, payload)
    covered = _COVERED.pack(*header[5:])
    crc = crc32c(payload, crc32c(covered))
    length = HEADER_BYTES - OVERHEAD_BYTES + len(payload)
    before = _BEFORE_CRC.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc)
    return b"".join((before, covered, payload))


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    if record.key is None and record.value is not None and not record.headers and record.timestamp == base_timestamp:
        # The records of brokers themselves, thousands of them at a time.
        middle = _varint(record.offset - base_offset) + _NULL + _varint(len(record.value))
        return b"".join((_varint(len(middle) + len(record.value) + 3), b"\x00\x00", middle, record.value, b"\x00"))
    parts = [b"\x00", _varint(record.timestamp - base_timestamp), _varint(record.offset - base_offset)]
    for field in (record.key, record.value):
        parts += (_NULL,) if field is None else (_varint(len(field)), field)
    parts.append(_varint(len(record.headers)))
    for name, value in record.headers:
        encoded = name.encode()
        parts += (_varint(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
    body = b"".join(parts)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    """A zigzag varint of up to 64 bits."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw < 0x80:
        return raw.to_bytes(1, "big")
    if raw < 0x4000:
        return (raw & 0x7F | 0x80 | raw >> 7 << 8).to_bytes(2, "little")
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
