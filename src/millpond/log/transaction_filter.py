"""What compaction must know about transactions while it scans a log from its start."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from millpond.log.aborted_transactions import Aborted, AbortedIndex
from millpond.log.markers import Marker
from millpond.wire.batch import BatchHeader


class TransactionFilter:
    """Identifies records of aborted transactions, and markers that are no longer needed."""

    def __init__(self, aborted: Iterable[Aborted] = (), *, keeps_ends: bool = False) -> None:
        self._keeps_ends = keeps_ends
        """Whether batches outside the scan may need any marker."""
        self.target: AbortedIndex | None = None
        """The index of the segment that is being written."""
        self._aborted: dict[int, list[Aborted]] = {}
        for entry in sorted(aborted, key=lambda entry: entry.last_offset):
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._seen: set[int] = set()
        """Producers whose current transaction has a batch in the scan."""

    def is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and self._entry(header.producer_id, header.base_offset) is not None

    def on_data(self, header: BatchHeader) -> bool:
        """Record a data batch; whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        # An empty batch counts too: recovery would take it for the start of a transaction.
        self._seen.add(header.producer_id)
        return self.is_aborted(header)

    def is_needed_by_records(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Record a control batch; whether any batch of the transaction that it ends still exists, or may."""
        if marker is None or (header.producer_id not in self._seen and not self._keeps_ends):
            return False
        self._seen.discard(header.producer_id)
        entry = self._entry(header.producer_id, header.base_offset)
        if entry is not None and self.target is not None:
            self.target.add(entry)
        return True

    def _entry(self, producer_id: int, offset: int) -> Aborted | None:
        """The aborted transaction of this producer that contains this offset."""
        entries = self._aborted.get(producer_id)
        if not entries:
            return None
        # A producer's transactions do not overlap: only the first that ends at or after the offset can contain it.
        number = bisect_left(entries, offset, key=lambda entry: entry.last_offset)
        if number < len(entries) and entries[number].first_offset <= offset:
            return entries[number]
        return None
