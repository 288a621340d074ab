"""How much of what waits a batch takes: at most `maxOffsetsPerTrigger`, and not before `minOffsetsPerTrigger`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millpond.base.ids import TopicPartition


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between."""
    return sum(max(end[partition] - start.get(partition, 0), 0) for partition in end)


def capped(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int
) -> dict[TopicPartition, int]:
    """An end that takes `offsets_max` in all, each partition in proportion to what it has waiting.

    A partition with anything to read gets at least one offset, so that none waits for ever behind a large one.
    """
    total = waiting(start, end)
    if total <= offsets_max:
        return dict(end)
    taken = dict(end)
    for partition, last in end.items():
        first = start.get(partition, 0)
        if last > first:
            taken[partition] = first + min(max(offsets_max * (last - first) // total, 1), last - first)
    return taken


@dataclass(slots=True)
class Gate:
    """Holds a batch back until enough waits, or until the last one was long enough ago."""

    offsets_min: int
    delay_ms_max: int
    clock_ms: Callable[[], int]
    _opened_ms: int | None = field(default=None, init=False)

    def opens(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Whether a batch may go now. The first of a query always may, as nothing is known of the one before."""
        now_ms = self.clock_ms()
        waited = self._opened_ms is None or now_ms - self._opened_ms >= self.delay_ms_max
        if not waited and waiting(start, end) < self.offsets_min:
            return False
        self._opened_ms = now_ms
        return True
