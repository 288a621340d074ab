"""What a batch must satisfy before it enters the log, and what the log then writes into its header."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.log.limits import LogLimits
from millpond.wire import kernel
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
    read_header,
)
from millpond.wire.records import records_section

RECORD_BYTES_MIN = 7
RECORD_ERRORS_MAX = 1000
UNPACKED_RECORDS_MAX = 100_000
UNPACKED_BYTES_MIN = 16 << 20
"""The least that a compacted topic unpacks to check record keys. The limit bounds how long one batch can take.

No client default comes near it; a topic with a larger `max.message.bytes` unpacks that many bytes.
"""
_INT64_MAX = (1 << 63) - 1
_NOT_FROM_CLIENTS = CONTROL | HAS_DELETE_HORIZON


class TooLargeToUnpack(Exception):
    """The records of a batch must be checked, and they unpack to more bytes than the caller allows."""


class RecordFaults(NamedTuple):
    """The invalid records of one batch: found on the loop, or by a worker if that takes long."""

    keyless: Sequence[int] = ()
    """The indexes of records that lack a required key."""
    out_of_time: Sequence[tuple[int, int]] = ()
    """The indexes and timestamps of records whose timestamp the topic rejects."""
    refusal: Refused | None = None
    """Why the records could not be checked."""
    has_checked_keys: bool = False
    """Whether keys were checked: the topic may have become compacted since."""


class InvalidRecords(Refused):
    """The batch was refused because of single records: the index of each in its batch, and its error."""

    def __init__(self, code: ErrorCode, message: str, records: Iterable[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = tuple(islice(records, RECORD_ERRORS_MAX))


def checked_headers(
    batches: Buffer,
    limits: LogLimits,
    now_ms: int,
    faults: RecordFaults | None = None,
    unpacked_bytes_max: int | None = None,
) -> Sequence[BatchHeader]:
    """The header of a client's batch, after checking every byte.

    Only one batch is allowed: with several, some might be duplicates and others not, and one response could not
    express that. `faults` are those of its records, if they have been checked already; see `record_faults` for the
    limit.
    """
    end = len(batches)
    if end > limits.segment_bytes:
        raise Refused(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"{end} bytes do not fit in a segment ({limits.segment_bytes})"
        )
    try:
        header = check_batch(batches, 0, end)
        if header.batch_length + 12 != end:
            check_batch(batches, header.size, end)
            raise Refused(ErrorCode.INVALID_RECORD, "a request may have only one record batch for each partition")
    except CorruptBatch as fault:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)) from None
    _check_for_topic(batches, header, limits, now_ms, faults, unpacked_bytes_max)
    return (header,)


def trusted_headers(batches: Buffer) -> Sequence[BatchHeader]:
    """The headers of batches from a leader or from the broker itself. They must be whole, but may hold anything."""
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
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "no batch to append")
    return headers


def stamped_headers(batches: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> Sequence[BatchHeader]:
    """Set the timestamp of every record to `now_ms`; the resulting headers."""
    position = 0
    stamped = []
    for header in headers:
        patch_append_time(batches, position, now_ms)
        stamped.append(header._replace(max_timestamp=now_ms))
        position += header.size
    return stamped


def needs_record_check(header: BatchHeader, limits: LogLimits, now_ms: int) -> bool:
    """Whether the header alone cannot prove that the topic accepts all records."""
    return limits.cleanup_compact or _has_bad_time(header, limits, now_ms)


def record_faults(
    batches: Buffer, limits: LogLimits, now_ms: int, unpacked_bytes_max: int | None = None
) -> RecordFaults:
    """The invalid records of a client's batch. Safe on any thread.

    TooLargeToUnpack if they are compressed and take more than `unpacked_bytes_max` bytes.
    """
    header = read_header(batches)
    try:
        bytes_max = most = _unpacked_bytes_max(header, limits)
        if unpacked_bytes_max is not None and header.codec:
            bytes_max = min(most, unpacked_bytes_max)
        section = records_section(batches, 0, header, limit_bytes=bytes_max)
        # Both checks run if both apply: the result is used later, when the timestamps may be valid.
        keyless: Sequence[int] = ()
        out_of_time: Sequence[tuple[int, int]] = ()
        if _has_bad_time(header, limits, now_ms):
            oldest = now_ms - limits.timestamp_before_max_ms
            newest = min(now_ms + limits.timestamp_after_max_ms, _INT64_MAX)
            out_of_time = kernel.records_outside(
                section, header.record_count, header.base_timestamp, oldest, newest, RECORD_ERRORS_MAX
            )
        if limits.cleanup_compact:
            keyless = kernel.keyless_records(section, header.record_count, RECORD_ERRORS_MAX)
    except MalformedMessage as fault:
        return RecordFaults(refusal=Refused(ErrorCode.CORRUPT_MESSAGE, str(fault)))
    except Refused as refusal:
        if refusal.code is ErrorCode.MESSAGE_TOO_LARGE and bytes_max < most:
            raise TooLargeToUnpack from None
        return RecordFaults(refusal=refusal)
    return RecordFaults(keyless, out_of_time, has_checked_keys=limits.cleanup_compact)


def _has_bad_time(header: BatchHeader, limits: LogLimits, now_ms: int) -> bool:
    """Whether the header shows that the topic rejects the timestamp of some record."""
    return not limits.timestamp_type_append and (
        header.max_timestamp - now_ms > limits.timestamp_after_max_ms
        or (now_ms - header.base_timestamp > limits.timestamp_before_max_ms and header.base_timestamp >= 0)
    )


def _check_for_topic(
    batches: Buffer,
    header: BatchHeader,
    limits: LogLimits,
    now_ms: int,
    faults: RecordFaults | None,
    unpacked_bytes_max: int | None,
) -> None:
    if header.batch_length + 12 > limits.max_message_bytes:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, the topic accepts {limits.max_message_bytes} (max.message.bytes)",
        )
    attributes = header.attributes
    if not attributes & CODEC_MASK and header.record_count * RECORD_BYTES_MIN > header.batch_length:
        raise Refused(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {header.size} bytes")
    if attributes & _NOT_FROM_CLIENTS:
        raise Refused(ErrorCode.INVALID_RECORD, "clients may not write control batches or delete horizons")
    if attributes & TIMESTAMP_LOG_APPEND and not limits.timestamp_type_append:
        raise Refused(ErrorCode.INVALID_TIMESTAMP, "a producer may not send the timestamp type LogAppendTime")
    if not needs_record_check(header, limits, now_ms):
        return
    if faults is None or (limits.cleanup_compact and not faults.has_checked_keys and faults.refusal is None):
        faults = record_faults(batches, limits, now_ms, unpacked_bytes_max)
    if _has_bad_time(header, limits, now_ms):
        _refuse_timestamp(header, limits, now_ms, faults)
    if faults.refusal is not None:
        raise faults.refusal
    if faults.keyless:
        # A compacted topic is a table: a record without a key has no row.
        message = "records of a compacted topic need a key"
        raise InvalidRecords(ErrorCode.INVALID_RECORD, message, ((index, message) for index in faults.keyless))


def _refuse_timestamp(header: BatchHeader, limits: LogLimits, now_ms: int, faults: RecordFaults) -> None:
    """Refuse the batch whether or not its records can be read."""
    oldest, newest = now_ms - limits.timestamp_before_max_ms, now_ms + limits.timestamp_after_max_ms
    if header.max_timestamp > newest:
        message = (
            f"timestamp {header.max_timestamp} is {header.max_timestamp - now_ms} ms in the future "
            f"(message.timestamp.after.max.ms is {limits.timestamp_after_max_ms})"
        )
    else:
        message = (
            f"timestamp {header.base_timestamp} is {now_ms - header.base_timestamp} ms in the past "
            f"(message.timestamp.before.max.ms is {limits.timestamp_before_max_ms})"
        )
    raise InvalidRecords(
        ErrorCode.INVALID_TIMESTAMP,
        message,
        (
            (index, f"timestamp {timestamp} is not between {oldest} and {newest}")
            for index, timestamp in faults.out_of_time
        ),
    )


def _unpacked_bytes_max(header: BatchHeader, limits: LogLimits) -> int:
    """The number of bytes its records may have; Refused if there are too many records."""
    if header.record_count > UNPACKED_RECORDS_MAX:
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.record_count} records is too large to check its keys or times "
            f"(at most {UNPACKED_RECORDS_MAX}): send smaller batches",
        )
    return max(UNPACKED_BYTES_MIN, limits.max_message_bytes)


def assign_offsets(batches: memoryview, headers: Sequence[BatchHeader], offset: int, leader_epoch: int) -> int:
    """Write offsets from `offset` on and the leader epoch into the batches; the last offset."""
    position = 0
    for header in headers:
        patch_offset_and_epoch(batches, position, offset, leader_epoch)
        position += header.batch_length + 12
        offset += header.last_offset_delta + 1
    return offset - 1
