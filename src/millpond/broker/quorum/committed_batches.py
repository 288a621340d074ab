"""Committed metadata batches that have yet to be applied: those this node wrote as leader from memory, all others
from the metadata log. A large batch is decoded in parts, one per turn of the loop."""

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
CHECK_EVERY: Final = 64
"""After how many records the decoder checks whether its turn is over."""


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """The records of one decision, between these offsets."""

    start_offset: int
    end_offset: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class _Decoding:
    """A batch that is decoded over several turns of the loop."""

    start_offset: int
    end_offset: int
    entries: Iterator[wire_records.Record]
    newest: int
    """The newest metadata.version whose records this program can decode."""
    records: list[Record] = field(default_factory=list)

    def go_on(self, is_late: Callable[[], bool]) -> MetadataBatch | None:
        """The whole batch, or None if the turn ended first."""
        for entry in self.entries:
            before = len(self.records)
            self.records += decode_records(entry.value or b"", self.newest)
            if before // CHECK_EVERY != len(self.records) // CHECK_EVERY and is_late():
                return None
        return MetadataBatch(self.start_offset, self.end_offset, tuple(self.records))


class CommittedBatches:
    def __init__(self, newest: int, on_unreadable: Callable[[], None], on_unknown: Callable[[str], None]) -> None:
        """`newest` is the newest metadata.version whose records this program can decode.

        `on_unreadable` is called when the disk cannot be read or the log is offline, `on_unknown` when a record was
        written by a newer version.
        """
        self._newest = newest
        self._on_unreadable = on_unreadable
        self._on_unknown = on_unknown
        self._own: deque[MetadataBatch] = deque()
        self._decoding: _Decoding | None = None

    # Batches this node wrote as leader.

    @property
    def has_own(self) -> bool:
        return bool(self._own)

    def add_own(self, batch: MetadataBatch) -> None:
        """Keep a batch in memory, so that it need not be read back."""
        self._own.append(batch)

    def forget_own(self) -> None:
        """Drop them: another leader may have replaced them."""
        self._own.clear()

    # Iteration.

    def next(
        self, log: PartitionLog, offset: int, upper: int, is_late: Callable[[], bool]
    ) -> Iterator[MetadataBatch | None]:
        """The batches from `offset` on that end at or below `upper`, as many as one read returns.

        None means that the turn ended inside a large batch, which the next call continues.
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
