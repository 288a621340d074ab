"""What each idempotent producer wrote last, so that a batch sent twice is stored once.

Per producer id the last five batches are remembered, as many as a client keeps in flight. Transactions fit in:
`transaction_start` is the first offset of the producer's open transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millpond.base.errors import ErrorCode, Refused
from millpond.wire.batch import CONTROL, SEQUENCE_COUNT, TRANSACTIONAL, BatchHeader

BATCHES_REMEMBERED = 5
NO_EPOCH = -1
NO_SEQUENCE = -1


class Span(NamedTuple):
    """One batch that a producer wrote."""

    base_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = ("active_ms", "coordinator_epoch", "epoch", "spans", "transaction_start")

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self.spans: list[Span] = []
        self.coordinator_epoch = -1
        self.transaction_start: int | None = None
        self.active_ms = -1

    @property
    def last_sequence(self) -> int:
        return self.spans[-1].last_sequence if self.spans else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.spans[-1].last_offset if self.spans else -1


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}

    def check(self, headers: Sequence[BatchHeader]) -> Span | None:
        """Refuse what is out of order; the span of the first writing if the first batch has been written before."""
        ahead: dict[int, tuple[int, int]] = {}
        for header in headers:
            if header.producer_id < 0:
                continue
            if header.base_sequence < 0 or header.producer_epoch < 0:
                raise Refused(ErrorCode.INVALID_RECORD, "an idempotent batch needs a producer epoch and a sequence")
            entry = self.entries.get(header.producer_id)
            seen = ahead.get(header.producer_id)
            if seen is None and entry is not None:
                duplicate = _written_before(entry, header)
                if duplicate is not None:
                    return duplicate
                seen = entry.epoch, entry.last_sequence
            if seen is not None:
                _check_order(header, *seen)
            ahead[header.producer_id] = header.producer_epoch, header.last_sequence
        return None

    def note(self, header: BatchHeader, first_offset: int, now_ms: int) -> None:
        """Take in one batch that now stands in the log at `first_offset`."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_epoch)
        elif header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.spans.clear()
        entry.active_ms = now_ms
        if header.attributes & CONTROL:
            entry.transaction_start = None
            return
        last_offset = first_offset + header.last_offset_delta
        entry.spans.append(
            Span(header.base_sequence, header.last_sequence, first_offset, last_offset, header.max_timestamp)
        )
        if len(entry.spans) > BATCHES_REMEMBERED:
            del entry.spans[0]
        if header.attributes & TRANSACTIONAL and entry.transaction_start is None:
            entry.transaction_start = first_offset

    def first_open_transaction(self) -> int | None:
        """The first offset of the oldest open transaction."""
        starts = [entry.transaction_start for entry in self.entries.values() if entry.transaction_start is not None]
        return min(starts, default=None)

    def last_offsets(self) -> dict[int, int]:
        """The last offset of every producer that has one: compaction keeps a trace of those batches."""
        return {producer_id: entry.last_offset for producer_id, entry in self.entries.items() if entry.spans}

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget producers that have been silent for so long; an open transaction keeps its producer."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_start is None and now_ms - entry.active_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        return gone

    def replay(self, batches: Iterable[BatchHeader], now_ms: int) -> None:
        """Take in batches read back from the log, which carry their own offsets.

        They count as written now: a producer must never be forgotten because its records bear old timestamps.
        """
        for header in batches:
            if header.producer_id >= 0:
                self.note(header, header.base_offset, now_ms)


def _written_before(entry: ProducerEntry, header: BatchHeader) -> Span | None:
    if header.producer_epoch != entry.epoch:
        return None
    for span in entry.spans:
        if span.base_sequence == header.base_sequence and span.last_sequence == header.last_sequence:
            return span
    return None


def _check_order(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    if header.producer_epoch < epoch:
        raise Refused(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} has epoch {epoch} by now; this batch has epoch {header.producer_epoch}",
        )
    if header.producer_epoch > epoch:
        if header.base_sequence != 0:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence "
                f"{header.base_sequence}, not 0",
            )
        return
    if header.base_sequence != (last_sequence + 1) % SEQUENCE_COUNT:
        raise Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {header.base_sequence} after {last_sequence}",
        )
