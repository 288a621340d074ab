"""What a batch must fulfil before it may enter the log, and what the log then writes into its header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

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
from millpond.wire.records import NO_TIMESTAMP, batch_keys, count_keyless

RECORD_BYTES_MIN = 7
RECORD_ERRORS_MAX = 1000
UNPACKED_RECORDS_MAX = 100_000
UNPACKED_BYTES_MIN = 16 << 20
"""A compacted topic looks at every record's key on the loop: no batch may make that take long. No client's default
comes near these; a topic that takes larger messages (`max.message.bytes`) takes as many bytes unpacked."""
_NOT_FROM_CLIENTS = CONTROL | HAS_DELETE_HORIZON


class InvalidRecords(Refused):
    """Single records are why the batch was refused: the index of each in its batch, and what is wrong with it."""

    def __init__(self, code: ErrorCode, message: str, records: Iterable[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = tuple(islice(records, RECORD_ERRORS_MAX))


def checked_headers(batches: Buffer, limits: LogLimits, now_ms: int) -> Sequence[BatchHeader]:
    """The header of a client's batch, every byte of which has been checked.

    There is exactly one: with several, some might be known already and others not, and one answer could not say so.
    """
    end = len(batches)
    if end > limits.segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"{end} bytes are more than a segment takes ({limits.segment_bytes})"
        )
    try:
        header = check_batch(batches, 0, end)
        if header.batch_length + 12 != end:
            check_batch(batches, header.size, end)
            raise Refused(ErrorCode.INVALID_RECORD, "a request may have only one record batch for each partition")
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    _check_for_topic(batches, header, limits, now_ms)
    return (header,)


def trusted_headers(batches: Buffer) -> Sequence[BatchHeader]:
    """The headers of batches from a leader or from the broker itself: whole, but free to hold anything."""
    headers = []
    position, end = 0, len(batches)
    try:
        while position < end:
            header = check_batch(batches, position, end, compacted=True)
            position += header.size
            headers.append(header)
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    if not headers:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "there is no batch to append")
    return headers


def stamped_headers(batches: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> Sequence[BatchHeader]:
    """Make `now_ms` the time of every record; the headers as they are then."""
    position = 0
    stamped = []
    for header in headers:
        patch_append_time(batches, position, now_ms)
        stamped.append(header._replace(max_timestamp=now_ms))
        position += header.size
    return stamped


def _check_for_topic(batches: Buffer, header: BatchHeader, limits: LogLimits, now_ms: int) -> None:
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
        _refuse_timestamp(batches, header, limits, now_ms)
    if limits.cleanup_compact:
        _check_keys(batches, header, limits)


def _refuse_timestamp(batches: Buffer, header: BatchHeader, limits: LogLimits, now_ms: int) -> None:
    if header.attributes & TIMESTAMP_LOG_APPEND:
        raise Refused(ErrorCode.INVALID_TIMESTAMP, "a producer may not claim the broker's append time")
    if header.max_timestamp - now_ms > limits.timestamp_after_max_ms:
        raise InvalidRecords(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is {header.max_timestamp - now_ms} ms in the future "
            f"(message.timestamp.after.max.ms is {limits.timestamp_after_max_ms})",
            _out_of_range(batches, header, limits, now_ms),
        )
    if header.base_timestamp >= 0:
        raise InvalidRecords(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is {now_ms - header.base_timestamp} ms in the past "
            f"(message.timestamp.before.max.ms is {limits.timestamp_before_max_ms})",
            _out_of_range(batches, header, limits, now_ms),
        )


def _out_of_range(batches: Buffer, header: BatchHeader, limits: LogLimits, now_ms: int) -> Iterator[tuple[int, str]]:
    oldest, newest = now_ms - limits.timestamp_before_max_ms, now_ms + limits.timestamp_after_max_ms
    try:
        keys = _keys(batches, header, limits)
    except (MalformedMessage, Refused):
        # The batch is refused anyway; that its records cannot be read either needs no word of its own.
        return
    for index, (_, _, _, delta) in enumerate(keys):
        timestamp = header.base_timestamp + delta
        if timestamp != NO_TIMESTAMP and not oldest <= timestamp <= newest:
            yield index, f"timestamp {timestamp} is not between {oldest} and {newest}"


def _check_keys(batches: Buffer, header: BatchHeader, limits: LogLimits) -> None:
    """A compacted topic is a table: a record without a key has no row."""
    try:
        if not count_keyless(batches, limit_bytes=_unpacked_bytes_max(header, limits)):
            return
        keys = _keys(batches, header, limits)
    except MalformedMessage as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    if any(key is None for _, key, _, _ in keys):
        message = "a compacted topic takes no record without a key"
        missing = ((index, message) for index, (_, key, _, _) in enumerate(keys) if key is None)
        raise InvalidRecords(ErrorCode.INVALID_RECORD, message, missing)


def _keys(batches: Buffer, header: BatchHeader, limits: LogLimits) -> list[tuple[int, bytes | None, bool, int]]:
    return batch_keys(batches, limit_bytes=_unpacked_bytes_max(header, limits))


def _unpacked_bytes_max(header: BatchHeader, limits: LogLimits) -> int:
    """How many bytes its records may have; Refused if they are too many."""
    if header.record_count > UNPACKED_RECORDS_MAX:
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.record_count} records is too large to check its keys or times "
            f"(at most {UNPACKED_RECORDS_MAX}): send smaller batches",
        )
    return max(UNPACKED_BYTES_MIN, limits.max_message_bytes)


def assign_offsets(batches: memoryview, headers: Sequence[BatchHeader], offset: int, leader_epoch: int) -> int:
    """Write the offsets from `offset` on, and the epoch, into the batches; the last offset."""
    position = 0
    for header in headers:
        patch_offset_and_epoch(batches, position, offset, leader_epoch)
        position += header.batch_length + 12
        offset += header.last_offset_delta + 1
    return offset - 1
