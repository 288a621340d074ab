"""The header of a record batch (format v2), read, checked and patched in place while the records stay opaque.

    0 base offset   8 length   12 leader epoch   16 magic   17 CRC   21 attributes   23 last offset delta
    27 base timestamp   35 max timestamp   43 producer id   51 producer epoch   53 base sequence   57 record count

The CRC covers everything from the attributes to the end, so the broker may set offset and epoch without touching it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial

from millpond.base.errors import ErrorCode, MalformedMessage, Refused, RemoteError
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.wire.checksum import crc32c

HEADER_BYTES = 61
OVERHEAD_BYTES = 12
"""Offset and length, which the length field does not count."""

MAGIC = 2
CODEC_MASK = 0x07
TIMESTAMP_LOG_APPEND = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
HAS_DELETE_HORIZON = 0x40

CODEC_LAST = 4
SEQUENCE_COUNT = 1 << 31
"""Sequence numbers run from 0 to 2**31 - 1 and wrap around."""

_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")

assert _HEADER.size == HEADER_BYTES


class CorruptBatch(RemoteError):
    """Bytes that claim to be a record batch and are not: a wrong CRC, an impossible length or count."""


class BatchHeader(NamedTuple):
    """The fields in wire order; `batch_length` excludes offset and length, `size` includes them."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_append_time(self) -> bool:
        return self.attributes & TIMESTAMP_LOG_APPEND != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the batch's tombstones; None while no horizon is set."""
        return self.base_timestamp if self.attributes & HAS_DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_COUNT


# A NamedTuple's own constructor costs as much as unpacking the fields.
_as_header: Callable[[tuple[int, ...]], BatchHeader] = partial(tuple.__new__, BatchHeader)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise MalformedMessage(f"a batch header has {HEADER_BYTES} bytes, {max(len(buffer) - position, 0)} are left")
    return _as_header(_HEADER.unpack_from(buffer, position))


def check_batch(buffer: Buffer, position: int = 0, end: int | None = None, *, compacted: bool = False) -> BatchHeader:
    """Check one whole batch, including its CRC, without reading its records.

    A producer's batch has a record for every offset; one from a disk or a leader (`compacted`) may lack some.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    if end - position <= _MAGIC_AT:
        raise CorruptBatch(f"{end - position} bytes are too few for a batch")
    # An older message may be shorter than a batch header, so the magic is checked first.
    magic = buffer[position + _MAGIC_AT]
    if magic < MAGIC:
        raise Refused(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{magic} is not supported: use a client that writes v2 (Kafka 0.11 or later)",
        )
    if magic != MAGIC:
        raise CorruptBatch(f"unknown magic {magic}")
    if end - position < HEADER_BYTES:
        raise CorruptBatch(f"{end - position} bytes are too few for a batch")
    header = read_header(buffer, position)
    size = header.size
    if not HEADER_BYTES <= size <= end - position:
        raise CorruptBatch(f"a batch of {size} bytes in {end - position}")
    if batch_crc(buffer, position, size) != header.crc:
        raise CorruptBatch("the CRC does not match")
    if header.codec > CODEC_LAST:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {header.codec}")
    if compacted:
        _check_counts_compacted(header)
    elif header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        # The bytes arrived as they were sent, so a retry (CORRUPT_MESSAGE) would not help.
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.record_count} records whose last offset delta is {header.last_offset_delta}",
        )
    return header


def _check_counts_compacted(header: BatchHeader) -> None:
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.next_offset >= 1 << 63:
        raise CorruptBatch(f"base offset {header.base_offset}, last offset delta {header.last_offset_delta}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(f"{header.record_count} records in {header.last_offset_delta + 1} offsets")


def batch_crc(buffer: Buffer, position: int, size: int) -> int:
    """The CRC-32C that belongs in the batch's header."""
    return crc32c(memoryview(buffer)[position + _ATTRIBUTES_AT : position + size])


def walk(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch with its position, in order; stops at a partial tail. CRCs are not checked."""
    end = len(buffer) if end is None else min(end, len(buffer))
    while end - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        size = header.size
        if header.magic != MAGIC or size < HEADER_BYTES:
            raise CorruptBatch(f"magic {header.magic} and size {size} at position {position}")
        if size > end - position:
            return
        yield position, header
        position += size


def patch_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set the batch's offset and leader epoch. Both fields are outside the CRC."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + 12, leader_epoch)


def patch_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Set the timestamp of every record of the batch, for `message.timestamp.type=LogAppendTime`."""
    size = OVERHEAD_BYTES + _LENGTH.unpack_from(buffer, position + 8)[0]
    attributes = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_AT)[0]
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_AT, attributes | TIMESTAMP_LOG_APPEND)
    _MAX_TIMESTAMP.pack_into(buffer, position + 35, now_ms)
    _CRC.pack_into(buffer, position + _CRC_AT, batch_crc(buffer, position, size))
