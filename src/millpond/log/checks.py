"""What a batch must fulfil before it may enter the log, and what the log then writes into its header."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.ports import Buffer
from millpond.log.limits import LogLimits
from millpond.wire.batch import (
    CODEC_MASK,
    CONTROL,
    HAS_DELETE_HORIZON,
    TIMESTAMP_LOG_APPEND,
    BatchHeader,
    CorruptBatch,
    check_batch,
    patch_append_time,
    patch_offset_and_epoch,
)
from millpond.wire.records import batch_keys

RECORD_BYTES_MIN = 7
_NOT_FROM_CLIENTS = CONTROL | HAS_DELETE_HORIZON


def checked_headers(batches: Buffer, limits: LogLimits, now_ms: int) -> Sequence[BatchHeader]:
    """The headers of a client's batches, every byte of which has been checked."""
    end = len(batches)
    if end > limits.segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"{end} bytes are more than a segment takes ({limits.segment_bytes})"
        )
    try:
        header = check_batch(batches, 0, end)
        _check_for_topic(batches, 0, header, limits, now_ms)
        position = header.batch_length + 12
        if position == end:
            return (header,)
        found = [header]
        while position < end:
            header = check_batch(batches, position, end)
            _check_for_topic(batches, position, header, limits, now_ms)
            position += header.size
            found.append(header)
        return found
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None


def trusted_headers(batches: Buffer) -> Sequence[BatchHeader]:
    """The headers of batches from a leader or from the broker itself: whole, but free to hold anything."""
    found = []
    position, end = 0, len(batches)
    try:
        while position < end:
            header = check_batch(batches, position, end, compacted=True)
            position += header.size
            found.append(header)
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    if not found:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "there is no batch to append")
    return found


def stamped_headers(batches: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> Sequence[BatchHeader]:
    """Make `now_ms` the time of every record; the headers as they are then."""
    position = 0
    stamped = []
    for header in headers:
        patch_append_time(batches, position, now_ms)
        stamped.append(header._replace(max_timestamp=now_ms))
        position += header.size
    return stamped


def _check_for_topic(batches: Buffer, position: int, header: BatchHeader, limits: LogLimits, now_ms: int) -> None:
    if header.batch_length + 12 > limits.max_message_bytes:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, the topic takes {limits.max_message_bytes} (max.message.bytes)",
        )
    attributes = header.attributes
    if not attributes & CODEC_MASK and header.record_count * RECORD_BYTES_MIN > header.batch_length:
        raise Refused(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {header.size} bytes")
    if attributes & _NOT_FROM_CLIENTS:
        raise Refused(ErrorCode.INVALID_RECORD, "a client may not write control batches or delete horizons")
    if not limits.timestamp_type_append and (
        attributes & TIMESTAMP_LOG_APPEND
        or header.max_timestamp - now_ms > limits.timestamp_after_max_ms
        or now_ms - header.base_timestamp > limits.timestamp_before_max_ms
    ):
        _refuse_timestamp(header, limits, now_ms)
    if limits.cleanup_compact:
        _check_keys(batches, position)


def _refuse_timestamp(header: BatchHeader, limits: LogLimits, now_ms: int) -> None:
    if header.attributes & TIMESTAMP_LOG_APPEND:
        raise Refused(ErrorCode.INVALID_TIMESTAMP, "a producer may not claim the broker's append time")
    if header.max_timestamp - now_ms > limits.timestamp_after_max_ms:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is {header.max_timestamp - now_ms} ms in the future "
            f"(message.timestamp.after.max.ms is {limits.timestamp_after_max_ms})",
        )
    if header.base_timestamp >= 0:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is {now_ms - header.base_timestamp} ms in the past "
            f"(message.timestamp.before.max.ms is {limits.timestamp_before_max_ms})",
        )


def _check_keys(batches: Buffer, position: int) -> None:
    """A compacted topic is a table: a record without a key has no row."""
    try:
        keys = batch_keys(batches, position)
    except MalformedMessage as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    if any(key is None for _, key, _, _ in keys):
        raise Refused(ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key")


def place(batches: memoryview, headers: Sequence[BatchHeader], offset: int, leader_epoch: int) -> int:
    """Write the offsets from `offset` on, and the epoch, into the batches; the last offset."""
    position = 0
    for header in headers:
        patch_offset_and_epoch(batches, position, offset, leader_epoch)
        position += header.batch_length + 12
        offset += header.last_offset_delta + 1
    return offset - 1
