"""Snapshots of the metadata as files, named as in Kafka: `%020d-%010d.checkpoint` in the metadata log's folder.

A snapshot holds the fewest records that give the image of all records below its end offset. Writing one is atomic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from millpond.base.errors import MalformedMessage
from millpond.base.ports import Disk
from millpond.broker.quorum.voters import voters_records
from millpond.metadata.codec import decode_records, encode_record
from millpond.metadata.features import METADATA_VERSION, SUPPORTED
from millpond.metadata.records import Record
from millpond.quorum.messages import SnapshotId
from millpond.quorum.voters import Voter
from millpond.wire import messages
from millpond.wire import records as wire_records
from millpond.wire.batch import CONTROL, walk

KEPT: Final = 2
"""How many snapshots are kept. The log starts at the end of the older one, so that a follower slightly behind need
not start over."""

CHUNK_BYTES: Final = 1 << 20
RECORDS_PER_BATCH: Final = 1000

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_HEADER_KEY, _FOOTER_KEY = b"\0\0\0\3", b"\0\0\0\4"


class SnapshotFiles:
    """The snapshots in one folder, oldest first."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        matches = [match for name in disk.list(folder) if (match := _NAME.fullmatch(name))]
        self.ids = sorted(SnapshotId(int(match[1]), int(match[2])) for match in matches)

    def path(self, snapshot: SnapshotId) -> str:
        return f"{self._folder}/{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"

    def write(self, snapshot: SnapshotId, data: bytes) -> None:
        """Write the file durably, on any thread; then call `add` on the loop."""
        self._disk.replace(self.path(snapshot), data)

    def add(self, snapshot: SnapshotId) -> None:
        self.ids = sorted({*self.ids, snapshot})

    def drop_before(self, end_offset: int) -> list[str]:
        """Forget older snapshots and return the paths of their files, to be removed."""
        gone = [each for each in self.ids if each.end_offset < end_offset]
        self.ids = self.ids[len(gone) :]
        return [self.path(each) for each in gone]

    def size(self, snapshot: SnapshotId) -> int | None:
        return self._disk.size(self.path(snapshot)) if snapshot in self.ids else None

    def read(self, snapshot: SnapshotId, position: int, length: int = CHUNK_BYTES) -> bytes:
        file = self._disk.open(self.path(snapshot))
        try:
            return file.read_at(position, length)
        finally:
            file.close()

    def read_whole(self, snapshot: SnapshotId) -> bytes:
        return self._disk.read(self.path(snapshot))


def encode_snapshot(records: Iterable[Record], now_ms: int, voters: Sequence[Voter] | None = None) -> bytes:
    """The records between a header, which also names the voters, and a footer, which proves that none is missing."""
    header = messages.SnapshotHeaderRecord(version=0, last_contained_log_timestamp=now_ms).encode(0)
    parts = [_batch([wire_records.Record(0, now_ms, _HEADER_KEY, header)], control=True)]
    if voters is not None:
        parts.append(_batch(voters_records(voters, now_ms, is_first=True), control=True))
    left = iter(records)
    while group := list(islice(left, RECORDS_PER_BATCH)):
        parts.append(
            _batch(
                [wire_records.Record(index, now_ms, None, encode_record(each)) for index, each in enumerate(group)]
            )
        )
    footer = messages.SnapshotFooterRecord(version=0).encode(0)
    parts.append(_batch([wire_records.Record(0, now_ms, _FOOTER_KEY, footer)], control=True))
    return b"".join(parts)


def _batch(records: list[wire_records.Record], *, control: bool = False) -> bytes:
    return wire_records.encode_batch(records, control=control)


def decode_snapshot(data: bytes) -> Iterator[Record]:
    """All records of a snapshot. Raises MalformedMessage if it is incomplete."""
    is_whole = False
    newest = SUPPORTED[METADATA_VERSION].newest
    for position, header in walk(data):
        entries = wire_records.decode_batch(data, position)
        if header.attributes & CONTROL:
            is_whole = any(entry.key == _FOOTER_KEY for entry in entries)
            continue
        for entry in entries:
            yield from decode_records(entry.value or b"", newest)
    if not is_whole:
        raise MalformedMessage("the snapshot is truncated")
