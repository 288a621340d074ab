"""Split a batch's offsets into ranges for tasks: one for each partition, or more if the options say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID, TopicPartition


@dataclass(frozen=True, order=True, slots=True)
class Range:
    """The records of one task: [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID = field(default=NO_TOPIC_ID, compare=False)
    """Distinguishes a recreated topic."""

    @property
    def size(self) -> int:
        """The number of offsets; compaction and transactions leave fewer records."""
        return self.end - self.start


def split(ranges: Iterable[Range], *, tasks_min: int | None, offsets_max: int | None) -> list[Range]:
    """Ranges of at most `offsets_max`, and at least about `tasks_min` of them."""
    whole = [each for each in sorted(ranges) if each.size > 0]
    if offsets_max is not None:
        whole = [part for each in whole for part in _cut(each, -(-each.size // offsets_max))]
    if tasks_min is None or len(whole) >= tasks_min:
        return whole
    total = sum(each.size for each in whole)
    # Ranges too small for a second task are set aside; the large ones share the rest.
    small = {each for each in whole if _share(each.size, total, tasks_min) == 1}
    tasks_left = max(tasks_min - len(small), 1)
    offsets_left = total - sum(each.size for each in small)
    return [
        part
        for each in whole
        for part in _cut(each, 1 if each in small else _share(each.size, offsets_left, tasks_left))
    ]


def _share(size: int, total: int, tasks: int) -> int:
    """The share of tasks for `size` of `total`, at least one."""
    return max((2 * size * tasks + total) // (2 * total), 1)


def _cut(whole: Range, parts: int) -> list[Range]:
    """Non-empty parts of equal size, the last ones one larger if needed."""
    edges = [whole.start + whole.size * number // parts for number in range(parts + 1)]
    return [replace(whole, start=first, end=last) for first, last in pairwise(edges) if first < last]
