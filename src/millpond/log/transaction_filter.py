"""What compaction must know of transactions while it walks a log from its start."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from millpond.log.aborted_transactions import Aborted, AbortedIndex
from millpond.log.markers import Marker
from millpond.wire.batch import BatchHeader


class TransactionFilter:
    """Tells the records of aborted transactions, and the markers that nobody needs any more."""

    def __init__(self, aborted: Iterable[Aborted] = (), *, keeps_ends: bool = False) -> None:
        self._keeps_ends = keeps_ends
        """Whether batches that the walk does not see may need any marker."""
        self.target: AbortedIndex | None = None
        """The index of the segment that is being written."""
        self._aborted: dict[int, list[Aborted]] = {}
        for entry in sorted(aborted, key=lambda entry: entry.last_offset):
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._seen: set[int] = set()
        """Producers of whose transaction at hand a batch has been seen."""

    def is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and self._entry(header.producer_id, header.base_offset) is not None

    def on_data(self, header: BatchHeader) -> bool:
        """Take in a batch of records; whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        # An empty batch counts, too: whoever reads the log again takes it for the beginning of a transaction.
        self._seen.add(header.producer_id)
        return self.is_aborted(header)

    def is_needed_by_records(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Take in a control batch; whether any batch of the transaction that it ends is still there, or may be."""
        if marker is None or (header.producer_id not in self._seen and not self._keeps_ends):
            return False
        self._seen.discard(header.producer_id)
        entry = self._entry(header.producer_id, header.base_offset)
        if entry is not None and self.target is not None:
            self.target.add(entry)
        return True

    def _entry(self, producer_id: int, offset: int) -> Aborted | None:
        """The aborted transaction of this producer that has this offset."""
        entries = self._aborted.get(producer_id)
        if not entries:
            return None
        # A producer has one transaction after the other: only the first that ends at or after the offset can hold it.
        number = bisect_left(entries, offset, key=lambda entry: entry.last_offset)
        if number < len(entries) and entries[number].first_offset <= offset:
            return entries[number]
        return None
