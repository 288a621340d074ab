"""Which offsets a filter can match at all.

A filter is any expression of Arrow's. Arrow itself says whether it can be true while a partition, a range of offsets
or of times is given; the bounds are found by halving. So whatever form a filter has, no row that it matches is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from millpond.analysis.ranges import OffsetRange
from millpond.base.ids import TopicPartition

TOPIC: Final = "_topic"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"

_FORMAT: Final = ds.IpcFileFormat()
_FILES: Final = pa.fs.LocalFileSystem()
_TIMES_MS: Final = 1 << 43
"""Times from 1970 to the year 2248 are pushed down."""

AtTimes = Callable[[int, Sequence[TopicPartition]], Mapping[TopicPartition, int | None]]
"""The first offset of each partition whose record is not older than a time in milliseconds; None if all are."""


def pruned(
    ranges: Sequence[OffsetRange], expression: ds.Expression | None, schema: pa.Schema, at_times: AtTimes
) -> list[OffsetRange]:
    """The parts of the ranges that the filter, on a table of this schema, can match."""
    if expression is None:
        return list(ranges)
    lookup = _Lookup(expression, schema)
    left = [part for each in ranges if (part := lookup.narrowed(each)) is not None]
    earliest_ms = lookup.earliest_ms() if left else None
    if earliest_ms is None:
        return left
    # Every record before the first one of that time is older, whatever the order of timestamps. There is no such
    # offset for the latest time: after a record that is too new may come older ones.
    firsts = at_times(earliest_ms, [each.partition for each in left])
    starts = {each: each.end if (at := firsts[each.partition]) is None else max(each.start, at) for each in left}
    return [replace(each, start=starts[each]) for each in left if starts[each] < each.end]


class _Lookup:
    def __init__(self, expression: ds.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema

    def narrowed(self, each: OffsetRange) -> OffsetRange | None:
        here = (ds.field(TOPIC) == each.partition.topic) & (ds.field(PARTITION) == _int32(each.partition.partition))

        def can_match(first: int, last: int) -> bool:
            return self._can_match(here & (ds.field(OFFSET) >= first) & (ds.field(OFFSET) <= last))

        if not can_match(each.start, each.end - 1):
            return None
        # What is cut off was asked for as a whole, so it cannot match, even if an answer in between was too careful.
        start = _least(each.start, each.end - 1, lambda last: can_match(each.start, last))
        end = 1 - _least(1 - each.end, -start, lambda first: can_match(-first, each.end - 1))
        return replace(each, start=start, end=end)

    def earliest_ms(self) -> int | None:
        """The earliest time that the filter can match; None if it sets no such bound."""

        def can_match(time_ms: int) -> bool:
            return self._can_match(ds.field(TIMESTAMP) <= _moment(time_ms))

        if can_match(-1):
            return None
        return _least(0, _TIMES_MS, can_match)

    def _can_match(self, guarantee: ds.Expression) -> bool:
        """Whether the filter can be true where the guarantee is."""
        fragment = _FORMAT.make_fragment("-", filesystem=_FILES, partition_expression=guarantee)
        # The fragment is never read; its columns are only named.
        files = ds.FileSystemDataset([fragment], self._schema, _FORMAT, _FILES, ds.scalar(True))
        return any(True for _ in files.get_fragments(self._expression))


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number for which `holds`, which stays true from there on and is true for `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _int32(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.int32())


def _moment(time_ms: int) -> pa.Scalar:
    return pa.scalar(time_ms * 1000, pa.timestamp("us", "UTC"))
