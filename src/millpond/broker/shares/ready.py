"""Which available records of a share partition come next: by priority, then by offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

PRIORITY_DEFAULT: Final = 4
"""The priority of a record without the header `queue.priority`."""


class Ready:
    """Offsets of available ranges: at least the first one of every run with one priority."""

    __slots__ = ("_is_current", "_lanes")

    def __init__(self, is_current: Callable[[int, int], bool]) -> None:
        self._is_current = is_current
        """Whether an offset is still available, with this priority."""
        self._lanes: dict[int, tuple[list[int], set[int]]] = {}
        """By priority: a heap of offsets that were available, and the same as a set."""

    def push(self, offset: int, priority: int) -> None:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = ([], set())
        heap, entered = lane
        if offset not in entered:
            entered.add(offset)
            heappush(heap, offset)

    def first(self, priority: int) -> int | None:
        """The first available offset of this priority."""
        lane = self._lanes.get(priority)
        if lane is None:
            return None
        heap, entered = lane
        while heap:
            if self._is_current(heap[0], priority):
                return heap[0]
            entered.discard(heappop(heap))
        return None

    def firsts(self) -> Iterator[tuple[int, int]]:
        """Each priority of which something is available, and the first offset."""
        for priority in self._lanes:
            offset = self.first(priority)
            if offset is not None:
                yield priority, offset
