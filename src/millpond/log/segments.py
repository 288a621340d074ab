"""The segments of one partition, and finding the bytes for an offset without reading them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import FileRange
from millpond.log.scan import whole_batches
from millpond.log.segment import Segment


class LogSlice(NamedTuple):
    """Whole batches, except that the last may be cut. The file of the range is retained until it is sent."""

    range: FileRange | None
    first_offset: int
    """The base offset of the first batch; it may be before the requested offset."""
    upper_offset: int
    """An upper bound: every record of the slice has a smaller offset."""

    def read(self) -> bytes:
        """The bytes, without the incomplete batch at the end. Releases the file."""
        if self.range is None:
            return b""
        try:
            return whole_batches(self.range.file.read_at(self.range.position, self.range.length))
        finally:
            self.range.file.release()


class Segments(Sequence[Segment]):
    """Oldest first; the last one grows. The list is replaced, never mutated, so every holder has a snapshot."""

    __slots__ = ("active", "bases", "list")

    def __init__(self, segments: list[Segment]) -> None:
        self.replace(segments)

    def replace(self, segments: list[Segment]) -> None:
        self.list = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self.list[index]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.list)

    def __len__(self) -> int:
        return len(self.list)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.list)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that holds the offset, and all later ones."""
        return self.list[max(bisect_right(self.bases, offset) - 1, 0) :]

    def add(self, fresh: Segment) -> None:
        self.replace([*self.list, fresh])

    def drop_oldest(self, gone: Sequence[Segment]) -> None:
        assert list(gone) == self.list[: len(gone)], "only the oldest segments can go"
        self.replace(self.list[len(gone) :])

    def swap(self, old: Sequence[Segment], fresh: Segment) -> None:
        """Replace neighbouring segments with one."""
        first = self.list.index(old[0])
        self.replace([*self.list[:first], fresh, *self.list[first + len(old) :]])

    def slice(self, offset: int, max_bytes: int, upper: int, min_one: bool, is_whole: bool = False) -> LogSlice:
        """Locate the batches from `offset` on, within one segment and below offset `upper`.

        With `is_whole` no batch is cut at the end if its start is known in memory.
        """
        for segment in [self.active] if offset >= self.active.base_offset else self.from_offset(offset):
            span = segment.locate(offset)
            if span is None:
                # Compaction left a hole up to the end of this segment.
                continue
            available = segment.position_of_end(upper) - span.position
            length = min(max_bytes, available)
            if length < span.size:
                length = span.size if min_one and available >= span.size else 0
            if length <= 0:
                break
            if is_whole and length < available:
                length = max(segment.start_before(span.position + length) - span.position, span.size)
            is_rest = span.position + length >= segment.size
            bound = segment.next_offset if is_rest else segment.offset_bound(span.position + length)
            file = segment.file
            file.retain()
            return LogSlice(FileRange(file, span.position, length), span.base_offset, min(bound, upper))
        return LogSlice(None, offset, offset)

    def close(self) -> None:
        for segment in self.list:
            segment.close()
