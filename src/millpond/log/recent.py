"""The places of the newest batches, so that readers at the end of a log need neither index nor file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

BATCHES_MAX = 1024


class Place(NamedTuple):
    """Where a batch lies in its segment's file."""

    position: int
    size: int
    base_offset: int


class RecentBatches:
    """Base offsets and positions of the newest batches of one segment, without gaps up to its end."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def add(self, base_offset: int, position: int) -> None:
        self.offsets.append(base_offset)
        self.positions.append(position)
        if len(self.offsets) > BATCHES_MAX:
            del self.offsets[: BATCHES_MAX // 2]
            del self.positions[: BATCHES_MAX // 2]

    def clear(self) -> None:
        self.offsets, self.positions = [], []

    def holding(self, offset: int, segment_size: int) -> Place | None:
        """The batch that holds `offset`, which lies in the segment; None if that is not among the newest."""
        if not self.offsets or offset < self.offsets[0]:
            return None
        place = bisect_right(self.offsets, offset) - 1
        position = self.positions[place]
        end = self.positions[place + 1] if place + 1 < len(self.positions) else segment_size
        return Place(position, end - position, self.offsets[place])

    def position_from(self, offset: int, segment_size: int) -> int | None:
        """Where the first batch that begins at or after `offset` starts; None if that cannot be told from here."""
        if not self.offsets or offset < self.offsets[0]:
            return None
        place = bisect_left(self.offsets, offset)
        return self.positions[place] if place < len(self.positions) else segment_size
