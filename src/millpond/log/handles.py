"""How many sealed segments may keep their files open."""

from __future__ import annotations

from millpond.log.segment import Segment

OPEN_SEGMENTS_MAX = 256


class OpenSegments:
    """The sealed segments that were read last; the files of others are closed and opened again when asked for."""

    __slots__ = ("_recent", "count_max")

    def __init__(self, count_max: int = OPEN_SEGMENTS_MAX) -> None:
        self.count_max = count_max
        self._recent: dict[Segment, None] = {}

    def touch(self, segment: Segment) -> None:
        """The segment is being read."""
        self._recent.pop(segment, None)
        self._recent[segment] = None
        if len(self._recent) > self.count_max:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            # Who still sends from it has retained the file.
            oldest.close()
