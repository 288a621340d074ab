"""Delayed records of a share partition, by the time at which they fall due.

A partition can have a million of them, so a delayed record costs one integer: the time, then its offset.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from millpond.coordinators.shares.state_batches import NO_TIME

OFFSET_BITS: Final = 63
OFFSETS: Final = (1 << OFFSET_BITS) - 1


class Delays:
    """Ranges of delayed records. A record leaves when it falls due, or when the start offset passes it."""

    __slots__ = ("_by_header", "_by_member", "_lasts", "count", "ignores_headers")

    def __init__(self) -> None:
        self.count = 0
        """The number of delayed records from the start offset on; the window keeps it."""
        self.ignores_headers = False
        """Records that are delayed by their headers are due, because the group no longer respects these."""
        self._by_header: list[int] = []
        self._by_member: list[int] = []
        self._lasts: dict[int, int] = {}
        """The last offsets of ranges with more than one record, by the first."""

    def add(self, first: int, last: int, due_ms: int, *, by_header: bool) -> None:
        self.count += last - first + 1
        if last > first:
            self._lasts[first] = last
        heappush(self._by_header if by_header else self._by_member, due_ms << OFFSET_BITS | first)

    def next_due_ms(self, start_offset: int) -> int:
        """When the first of them is due; -1 if none is delayed."""
        times = [heap[0] >> OFFSET_BITS for heap in self._heaps(start_offset) if heap]
        if self.ignores_headers and self._by_header:
            return 0
        return min(times, default=NO_TIME)

    def due(self, wall_ms: int, start_offset: int, ranges_max: int) -> list[tuple[int, int]]:
        """Remove ranges that are due, the earliest first. The caller makes them available."""
        due: list[tuple[int, int]] = []
        for heap in self._heaps(start_offset):
            is_any = self.ignores_headers and heap is self._by_header
            while heap and len(due) < ranges_max and (is_any or heap[0] >> OFFSET_BITS <= wall_ms):
                first, last = self._pop(heap)
                if last >= start_offset:
                    due.append((max(first, start_offset), last))
        self.count -= sum(last - first + 1 for first, last in due)
        return due

    def _heaps(self, start_offset: int) -> tuple[list[int], list[int]]:
        """Both heaps; neither begins with a range that the start offset has passed."""
        for heap in (self._by_member, self._by_header):
            while heap and self._last(heap[0] & OFFSETS) < start_offset:
                self._pop(heap)
        return self._by_member, self._by_header

    def _pop(self, heap: list[int]) -> tuple[int, int]:
        first = heappop(heap) & OFFSETS
        return first, self._lasts.pop(first, first)

    def _last(self, first: int) -> int:
        return self._lasts.get(first, first)
