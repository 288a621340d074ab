"""Lists and checks the batches of a segment file."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import click

from millpond.base.errors import MalformedMessage, Refused, RemoteError
from millpond.cli.json_lines import as_json, shown_data, shown_headers
from millpond.cli.text import counted
from millpond.cli.times import show_time
from millpond.metadata.codec import decode_records
from millpond.metadata.features import METADATA_VERSION, SUPPORTED
from millpond.metadata.records import PartitionChangeRecord
from millpond.metadata.topics import METADATA_TOPIC
from millpond.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, check_batch, read_header
from millpond.wire.compression import CODEC_NAMES
from millpond.wire.records import Record, decode_batch

VALUE_SIGNS_MAX: Final = 300
BATCH_BYTES_MAX: Final = 1 << 30
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_NAMES: Final = {0: "abort", 1: "commit", 2: "leader change", 3: "snapshot header", 4: "snapshot footer"}
_ROW: Final = "{:>10} {:>10} {:>6} {:>8} {:<6} {:<12} {:>5} {:<3}  {}"


class Torn(Exception):
    """No complete batch follows `position`."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position


@dataclass(slots=True)
class Tally:
    """Counts over the file."""

    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    next_offset: int = 0
    faults: int = 0
    day: str = ""


def batches_of(path: str) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Position, header and bytes of every batch. Raises Torn at an incomplete one."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        position, end = 0, os.fstat(descriptor).st_size
        while position < end:
            head = os.pread(descriptor, HEADER_BYTES, position)
            if len(head) < HEADER_BYTES:
                raise Torn(position, f"{len(head)} bytes are too few for a header")
            header = read_header(head)
            if header.magic != MAGIC or not HEADER_BYTES <= header.size <= BATCH_BYTES_MAX:
                raise Torn(position, _no_batch(header))
            if header.size > end - position:
                raise Torn(position, f"a batch of {header.size:,} bytes starts, but only {end - position:,} are left")
            data = os.pread(descriptor, header.size, position)
            if len(data) < header.size:
                raise Torn(position, "the file shrank while it was read")
            yield position, header, data
            position += header.size
    finally:
        os.close(descriptor)


def _no_batch(header: BatchHeader) -> str:
    if not any(header):
        return "only zeros"
    if header.magic in (0, 1):
        return f"a message of the old format v{header.magic}"
    return f"not a batch (magic {header.magic}, size {header.size:,})"


def dump_batches(path: str, *, records: bool, deep: bool, for_programs: bool) -> int:
    """Prints the table and returns the exit code: 1 for a torn or damaged file."""
    if for_programs:
        return _dump_json(path, records=records, deep=deep)
    is_metadata = os.path.basename(os.path.dirname(os.path.abspath(path))).startswith(f"{METADATA_TOPIC}-")
    tally = Tally()
    torn: Torn | None = None
    click.echo(_ROW.format("position", "offset", "count", "size", "codec", "time (UTC)", "epoch", "crc", "").rstrip())
    try:
        for position, header, data in batches_of(path):
            _print_batch(position, header, data, tally)
            if records or deep:
                _print_records(data, header, tally, is_metadata=is_metadata, shown=records)
    except Torn as fault:
        torn = fault
    _print_sum(path, tally, torn)
    return 1 if torn or tally.faults else 0


def _dump_json(path: str, *, records: bool, deep: bool) -> int:
    """The same as JSON, one batch per line. Errors of the whole file go to standard error."""
    tally = Tally()
    torn: Torn | None = None
    try:
        for position, header, data in batches_of(path):
            line, faults = _batch_object(position, header), _check(header, data, tally)
            if records or deep:
                try:
                    decoded = decode_batch(data, limit_bytes=BATCH_BYTES_MAX)
                    line |= {"records": [_record_object(each) for each in decoded]} if records else {}
                except (MalformedMessage, Refused) as fault:
                    faults.append(f"the records cannot be read: {fault}")
                    tally.faults += 1
            click.echo(as_json(line | {"faults": faults}))
    except Torn as fault:
        torn = fault
    _print_faults(path, tally, torn)
    return 1 if torn or tally.faults else 0


def _batch_object(position: int, header: BatchHeader) -> dict[str, object]:
    return {
        "position": position,
        "size": header.size,
        "offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "codec": _codec(header),
        "timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "sequence": header.base_sequence,
        "is_control": header.is_control,
        "is_transactional": header.is_transactional,
    }


def _record_object(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": shown_data(record.key),
        "value": shown_data(record.value),
        "headers": shown_headers(list(record.headers)),
    }


def _check(header: BatchHeader, data: bytes, tally: Tally) -> list[str]:
    """Counts the batch and returns its faults."""
    faults = []
    if tally.batches and header.base_offset < tally.next_offset:
        faults.append(f"offset {tally.next_offset:,} or more expected")
    try:
        check_batch(data, compacted=True)
    except (RemoteError, Refused) as fault:
        faults.append(str(fault))
    tally.faults += len(faults)
    tally.batches += 1
    tally.records += max(header.record_count, 0)
    tally.next_offset = header.next_offset
    if tally.first_offset is None:
        tally.first_offset = header.base_offset
    return faults


def _codec(header: BatchHeader) -> str:
    return CODEC_NAMES[header.codec] if header.codec < len(CODEC_NAMES) else f"? {header.codec}"


def _print_batch(position: int, header: BatchHeader, data: bytes, tally: Tally) -> None:
    expected = tally.next_offset if tally.batches else 0
    faults = _check(header, data, tally)
    is_order_fault = header.base_offset < expected
    crc = "BAD" if len(faults) > is_order_fault else "ok"
    notes = [*(f"{fault}!" for fault in faults), *_notes(header)]
    day, _, clock = show_time(header.base_timestamp).partition("T")
    if clock and day != tally.day:
        tally.day = day
        click.echo(f"{'-' * 46} {day} {'-' * 21}")
    time = clock.removesuffix("Z") or "-"
    click.echo(
        _ROW.format(
            position,
            header.base_offset,
            header.record_count,
            header.size,
            _codec(header),
            time,
            header.leader_epoch,
            crc,
            " · ".join(notes),
        ).rstrip()
    )


def _notes(header: BatchHeader) -> Iterator[str]:
    if header.is_control:
        yield "control"
    if header.is_transactional:
        yield "transactional"
    if header.is_append_time:
        yield "append time"
    if header.delete_horizon_ms is not None:
        yield f"tombstones go after {show_time(header.delete_horizon_ms)}"
    if header.producer_id >= 0:
        yield f"producer {header.producer_id}/{header.producer_epoch} seq {header.base_sequence}"
    if header.record_count != header.last_offset_delta + 1:
        yield f"last offset {header.last_offset}"
    if header.max_timestamp != header.base_timestamp and header.max_timestamp >= 0:
        span_ms = header.max_timestamp - header.base_timestamp
        yield f"+{span_ms} ms" if 0 <= span_ms < 10_000 else f"to {show_time(header.max_timestamp)}"


def _print_records(data: bytes, header: BatchHeader, tally: Tally, *, is_metadata: bool, shown: bool) -> None:
    try:
        records = decode_batch(data, limit_bytes=BATCH_BYTES_MAX)
    except (MalformedMessage, Refused) as fault:
        click.echo(f"{'':>10} the records cannot be read: {fault}!")
        tally.faults += 1
        return
    if records and records[-1].offset > header.last_offset:
        click.echo(f"{'':>10} record {records[-1].offset} lies after the batch's last offset {header.last_offset}!")
        tally.faults += 1
    for record in records if shown else ():
        click.echo(
            f"{'':>10} {record.offset:>10} {show_time(record.timestamp)}  {_content(record, header, is_metadata)}"
        )


def _content(record: Record, header: BatchHeader, is_metadata: bool) -> str:
    if header.is_control and record.key is not None and len(record.key) >= _CONTROL_KEY.size:
        _, kind = _CONTROL_KEY.unpack_from(record.key)
        return f"control: {_CONTROL_NAMES.get(kind, kind)}"
    if is_metadata:
        try:
            first, *others = decode_records(record.value or b"", SUPPORTED[METADATA_VERSION].newest)
            alike = ", ".join(str(each.partition_id) for each in others if isinstance(each, PartitionChangeRecord))
            return repr(first) + (f", and so do the partitions {alike}" if alike else "")
        except MalformedMessage as fault:
            return f"not a metadata record: {fault}"
    headers = " ".join(f"{name}={_shown(value)}" for name, value in record.headers)
    key = f"{_shown(record.key)} = " if record.key is not None else ""
    return key + _shown(record.value) + (f"  [{headers}]" if headers else "")


def _shown(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    text = data[:VALUE_SIGNS_MAX].decode("utf-8", "backslashreplace")
    safe = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return safe if len(data) <= VALUE_SIGNS_MAX else f"{safe}… ({len(data):,} bytes)"


def _print_sum(path: str, tally: Tally, torn: Torn | None) -> None:
    span = f", offsets {tally.first_offset} to {tally.next_offset - 1}" if tally.batches else ""
    batches = f"{tally.batches:,} batch{'' if tally.batches == 1 else 'es'}"
    click.echo(f"{batches}, {counted(tally.records, 'record')}{span}")
    _print_faults(path, tally, torn)


def _print_faults(path: str, tally: Tally, torn: Torn | None) -> None:
    if tally.faults:
        click.echo(f"millpond: {path} has {tally.faults:,} faults, marked above.", err=True)
    if torn is not None:
        lost = os.path.getsize(path) - torn.position
        click.echo(
            f"millpond: {path} is torn at byte {torn.position}: {torn}; the last {lost:,} bytes are not a complete "
            "batch, and a node truncates them when it recovers from a crash.",
            err=True,
        )
