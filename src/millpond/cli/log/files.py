"""Shows the files beside a segment: indexes, epochs, producer snapshots, checkpoints."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import click

from millpond.base.named_tuple import NamedTuple
from millpond.cli.errors import Failed
from millpond.cli.terminal import Cell, print_table
from millpond.cli.times import show_time
from millpond.log import checkpoints, names
from millpond.log.snapshots import DamagedSnapshot, decode_snapshot


class Moment(NamedTuple):
    """A time, formatted for people, plain for programs."""

    ms: int


Value = str | int | Moment | None

_Row = Callable[[int, int, int], Sequence[Value]]

Dump = Callable[[bytes, int, bool], int]
"""Shows a file, given its base offset, as a table or as lines of JSON; returns the exit code."""

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_ABORTED_ENTRY: Final = struct.Struct(">hqqqq")

CHECKPOINT_COLUMNS: Final = {
    2: ("Epoch", "First offset"),
    3: ("Topic", "Partition", "Offset"),
    4: ("Topic", "Partition", "Segment", "Appended last"),
}
"""The columns of a checkpoint, by their number."""


def _show_rows(columns: Sequence[str], rows: Sequence[Sequence[Value]], as_json: bool, *, words: int = 1) -> None:
    if not as_json:
        # An id is a name: it gets no thousands separators.
        cells = [[_cell(value) if at >= words else str(_cell(value)) for at, value in enumerate(row)] for row in rows]
        print_table(columns, cells, words=words)
        return
    names = [column.lower().replace(" ", "_") for column in columns]
    for row in rows:
        fields = (value.ms if isinstance(value, Moment) else value for value in row)
        click.echo(json.dumps(dict(zip(names, fields, strict=True))))


def _cell(value: Value) -> Cell:
    match value:
        case None:
            return "-"
        case Moment(ms):
            return show_time(ms)
        case _:
            return value


def _dump_index(
    entry: struct.Struct, columns: Sequence[str], row: _Row, data: bytes, base: int, as_json: bool
) -> int:
    """Entries must increase; a node would rebuild an index where one does not."""
    rows: list[Sequence[Value]] = []
    last_key = last_value = -1
    stray = len(data) % entry.size
    fault = f"{stray} bytes at the end are not a complete entry" if stray else ""
    for number, (key, value) in enumerate(entry.iter_unpack(data[: len(data) - stray])):
        if key <= last_key or value < last_value:
            is_zero = not any(data[number * entry.size :])
            # Kafka preallocates the index of its active segment: trailing zeros are not damage.
            fault = "" if is_zero else f"entry {number:,} does not increase"
            break
        rows.append(row(base, key, value))
        last_key, last_value = key, value
    _show_rows(columns, rows, as_json, words=0 if columns is _OFFSET_COLUMNS else 1)
    if not as_json:
        click.echo(f"{len(rows):,} entr{'y' if len(rows) == 1 else 'ies'}")
    if fault:
        click.echo(f"millpond: damaged index: {fault}; delete the file and the node rebuilds it.", err=True)
    return 1 if fault else 0


def _dump_aborted_index(data: bytes, base: int, as_json: bool) -> int:
    usable = len(data) - len(data) % _ABORTED_ENTRY.size
    rows = [row[1:] for row in _ABORTED_ENTRY.iter_unpack(data[:usable])]
    _show_rows(("Producer", "First offset", "Last offset", "Last stable offset"), rows, as_json, words=0)
    return 0 if usable == len(data) else 1


def _dump_snapshot(data: bytes, base: int, as_json: bool) -> int:
    try:
        states = decode_snapshot(data)
    except DamagedSnapshot as damage:
        raise Failed(f"The snapshot is damaged ({damage}): a node uses an older one and the log instead.") from None
    rows: list[Sequence[Value]] = [
        (
            producer,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            Moment(entry.active_ms),
            entry.transaction_start,
        )
        for producer, entry in sorted(states.entries.items())
    ]
    _show_rows(("Producer", "Epoch", "Last seq", "Last offset", "Active", "Open since"), rows, as_json)
    return 0


def _dump_checkpoint(data: bytes, base: int, as_json: bool) -> int:
    """A version line, a count line, then the entries."""
    fault = ""
    for width, columns in CHECKPOINT_COLUMNS.items():
        try:
            rows = checkpoints.decode_lines(data, width)
        except checkpoints.DamagedCheckpoint as damage:
            fault = str(damage)
            continue
        _show_rows(columns, rows, as_json, words=1 if width > 2 else 0)
        return 0
    raise Failed(f"The checkpoint is damaged ({fault}): a node recovers its content from the log.")


def _dump_partition_metadata(data: bytes, base: int, as_json: bool) -> int:
    try:
        topic_id = checkpoints.decode_metadata(data)
    except checkpoints.DamagedCheckpoint as damage:
        raise Failed(f"{damage}.") from None
    click.echo(json.dumps({"topic_id": str(topic_id)}) if as_json else f"topic id  {topic_id}")
    return 0


_OFFSET_COLUMNS: Final = ("Last offset", "Batch starts at byte")
_TIME_COLUMNS: Final = ("Largest time so far", "Milliseconds", "Offset")

DUMPS: Final[Mapping[str, Dump]] = {
    names.OFFSET_INDEX: partial(
        _dump_index, _OFFSET_ENTRY, _OFFSET_COLUMNS, lambda base, key, value: (base + key, value)
    ),
    names.TIME_INDEX: partial(
        _dump_index, _TIME_ENTRY, _TIME_COLUMNS, lambda base, key, value: (Moment(key), key, base + value)
    ),
    names.TXN_INDEX: _dump_aborted_index,
    names.SNAPSHOT: _dump_snapshot,
    names.METADATA_FILE: _dump_partition_metadata,
    "-checkpoint": _dump_checkpoint,
}
"""The function that shows a file, by its suffix."""
