"""A heap of offsets, each at most once."""

from __future__ import annotations

from heapq import heappop, heappush


class OffsetHeap:
    __slots__ = ("_heap", "_offsets")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._offsets: set[int] = set()

    def push(self, offset: int) -> None:
        if offset not in self._offsets:
            self._offsets.add(offset)
            heappush(self._heap, offset)

    def pop(self) -> int | None:
        """The lowest offset, which is then no longer in it."""
        if not self._heap:
            return None
        offset = heappop(self._heap)
        self._offsets.discard(offset)
        return offset
