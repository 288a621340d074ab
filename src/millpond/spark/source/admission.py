"""Admission of offsets to a batch: `maxOffsetsPerTrigger` and `minOffsetsPerTrigger`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millpond.base.ids import TopicPartition


def backlog(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """The number of offsets between start and end."""
    return sum(max(end[partition] - start.get(partition, 0), 0) for partition in end)


def cap(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int
) -> dict[TopicPartition, int]:
    """An end that admits `offsets_max` offsets, in proportion to each partition's backlog.

    A partition with anything to read gets at least one offset, so that a large one cannot starve it.
    """
    total = backlog(start, end)
    if total <= offsets_max:
        return dict(end)
    admitted_ends = dict(end)
    for partition, last in end.items():
        first = start.get(partition, 0)
        if last > first:
            admitted_ends[partition] = first + min(max(offsets_max * (last - first) // total, 1), last - first)
    return admitted_ends


@dataclass(slots=True)
class Gate:
    """Delays a batch until enough offsets are available, or the maximum delay is over."""

    offsets_min: int
    delay_ms_max: int
    clock_ms: Callable[[], int]
    _opened_ms: int | None = field(default=None, init=False)

    def opens(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Whether a batch may run now; the first of a query always may."""
        now_ms = self.clock_ms()
        waited = self._opened_ms is None or now_ms - self._opened_ms >= self.delay_ms_max
        if not waited and backlog(start, end) < self.offsets_min:
            return False
        self._opened_ms = now_ms
        return True
