"""What is committed and has yet to be applied, batch by batch: what this node has written as the leader from memory,
all else from the metadata log. A large batch is read in parts, one in each turn of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final

from millpond.base.errors import MalformedMessage, Refused
from millpond.base.values import dataclass
from millpond.broker.data_folder.identity import CannotStart
from millpond.metadata.codec import UnknownRecord, decode_records
from millpond.metadata.records import Record
from millpond.wire import records as wire_records
from millpond.wire.batch import CONTROL, walk

if TYPE_CHECKING:
    from millpond.log.partition_log import PartitionLog

READ_BYTES: Final = 1 << 20
LOOK_EVERY: Final = 64
"""After how many records it is looked whether the turn is over."""


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """The records of one decision, between these offsets."""

    start_offset: int
    end_offset: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class _Decoding:
    """A batch on its way from bytes to records, a part in each turn of the loop."""

    start_offset: int
    end_offset: int
    entries: Iterator[wire_records.Record]
    newest: int
    """The metadata.version up to which records are known here."""
    records: list[Record] = field(default_factory=list)

    def go_on(self, is_late: Callable[[], bool]) -> MetadataBatch | None:
        """The batch, or None when the turn was over before its end."""
        for entry in self.entries:
            before = len(self.records)
            self.records += decode_records(entry.value or b"", self.newest)
            if before // LOOK_EVERY != len(self.records) // LOOK_EVERY and is_late():
                return None
        return MetadataBatch(self.start_offset, self.end_offset, tuple(self.records))


class CommittedBatches:
    def __init__(self, newest: int, on_unreadable: Callable[[], None], on_unknown: Callable[[str], None]) -> None:
        """`newest` is the metadata.version up to which this program knows records.

        `on_unreadable` hears that the disk gives nothing for now, or that the log is offline; `on_unknown` of a
        record that a newer program has written.
        """
        self._newest = newest
        self._on_unreadable = on_unreadable
        self._on_unknown = on_unknown
        self._own: deque[MetadataBatch] = deque()
        self._decoding: _Decoding | None = None

    # What this node has written as the leader.

    @property
    def has_own(self) -> bool:
        return bool(self._own)

    def add_own(self, batch: MetadataBatch) -> None:
        """It need not be read again."""
        self._own.append(batch)

    def forget_own(self) -> None:
        """Another leads now, and may have written something else in its place."""
        self._own.clear()

    # What comes next.

    def next(
        self, log: PartitionLog, offset: int, upper: int, is_late: Callable[[], bool]
    ) -> Iterator[MetadataBatch | None]:
        """Those from `offset` on that end below `upper`; not more than one read gives.

        None when the turn is over in the middle of a large one: the next turn goes on with it.
        """
        if self._decoding is not None and self._decoding.start_offset == offset:
            yield self._decode(self._decoding, is_late)
            return
        if self._own and self._own[0].start_offset == offset:
            yield self._own.popleft()
            return
        try:
            data = log.read_batches(offset, READ_BYTES)
        except Refused:
            self._on_unreadable()
            return
        for position, header in walk(data):
            if header.next_offset > upper:
                break
            if header.attributes & CONTROL:
                yield MetadataBatch(header.base_offset, header.next_offset, ())
                continue
            try:
                entries = iter(wire_records.decode_batch(data, position))
            except MalformedMessage as fault:
                raise CannotStart(_unreadable(header.base_offset, fault)) from fault
            yield self._decode(_Decoding(header.base_offset, header.next_offset, entries, self._newest), is_late)

    def _decode(self, decoding: _Decoding, is_late: Callable[[], bool]) -> MetadataBatch | None:
        try:
            batch = decoding.go_on(is_late)
        except UnknownRecord as fault:
            self._on_unknown(_unreadable(decoding.start_offset, fault))
            return None
        except MalformedMessage as fault:
            raise CannotStart(_unreadable(decoding.start_offset, fault)) from fault
        self._decoding = decoding if batch is None else None
        return batch


def _unreadable(offset: int, fault: MalformedMessage) -> str:
    return f"the metadata log cannot be read at offset {offset}: {fault}"
