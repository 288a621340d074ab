"""A sorted map from ranges of offsets to values, without holes: a step function over one interval.

Neighbours with equal values are one range. Ranges are kept in chunks of bounded size, so that a lookup or a change
costs about the same with ten ranges as with a million.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

V = TypeVar("V")

CHUNK_MAX: Final = 512
"""A longer chunk is split in two."""
CHUNK_MIN: Final = 64
"""A shorter chunk is joined with the next one, if both together are no longer than half a chunk."""


class RangeMap(Generic[V]):
    """Maps every offset from `start` up to, but not including, `end`."""

    __slots__ = ("_chunks", "_heads", "_size", "_values", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self._heads: list[int] = []
        """The first offset of each chunk."""
        self._chunks: list[list[int]] = []
        """The first offset of each range; a range ends where the next one begins."""
        self._values: list[list[V]] = []
        self._size = 0

    def __len__(self) -> int:
        """The number of ranges."""
        return self._size

    def at(self, offset: int) -> V:
        assert self.start <= offset < self.end, f"{offset} is not between {self.start} and {self.end}"
        chunk, index = self._position(offset)
        return self._values[chunk][index]

    def ranges(self, first: int, last: int) -> Iterator[tuple[int, int, V]]:
        """Every range between `first` and `last`, cut to these offsets. The map must not change meanwhile."""
        first, last = max(first, self.start), min(last, self.end - 1)
        if first > last:
            return
        chunk, index = self._position(first)
        while True:
            firsts, values = self._chunks[chunk], self._values[chunk]
            count = len(firsts)
            while index < count - 1:
                end = firsts[index + 1] - 1
                if end >= last:
                    yield first, last, values[index]
                    return
                yield first, end, values[index]
                first, index = end + 1, index + 1
            end = self._last(chunk, index)
            if end >= last:
                yield first, last, values[index]
                return
            yield first, end, values[index]
            first, chunk, index = end + 1, chunk + 1, 0

    def append(self, last: int, value: V) -> None:
        """Map everything from the present end up to `last`."""
        assert last >= self.end
        if not self._chunks or (self._values[-1][-1] != value and len(self._chunks[-1]) >= CHUNK_MAX):
            self._heads.append(self.end)
            self._chunks.append([self.end])
            self._values.append([value])
            self._size += 1
        elif self._values[-1][-1] != value:
            self._chunks[-1].append(self.end)
            self._values[-1].append(value)
            self._size += 1
        self.end = last + 1

    def assign(self, first: int, last: int, value: V) -> None:
        """Map `first` to `last`, which lie within the map, to another value."""
        assert self.start <= first <= last < self.end, f"{first}-{last} in {self.start}-{self.end}"
        chunk, index = self._position(first)
        firsts, values = self._chunks[chunk], self._values[chunk]
        if 0 < index < len(firsts) - 1 and firsts[index] == first and firsts[index + 1] == last + 1:
            # A whole range with neighbours in its chunk, as is usual where states alternate.
            if value not in (values[index - 1], values[index + 1]):
                values[index] = value
                return
        else:
            self._cut(first)
            if last + 1 < self.end:
                self._cut(last + 1)
            chunk, index = self._position(first)
        self._values[chunk][index] = value
        self._erase_after(chunk, index, last)
        if last + 1 < self.end:
            self._join(last + 1)
        if first > self.start:
            self._join(first)

    def copy(self) -> RangeMap[V]:
        other: RangeMap[V] = RangeMap(self.start)
        other.end, other._size, other._heads = self.end, self._size, list(self._heads)
        other._chunks, other._values = list(map(list, self._chunks)), list(map(list, self._values))
        return other

    def drop_before(self, offset: int) -> None:
        """Begin at a later offset, which may be past the end."""
        assert offset >= self.start
        if offset >= self.end:
            self.start = self.end = offset
            self._heads, self._chunks, self._values, self._size = [], [], [], 0
            return
        chunk, index = self._position(offset)
        self._size -= sum(map(len, self._chunks[:chunk])) + index
        del self._heads[:chunk], self._chunks[:chunk], self._values[:chunk]
        del self._chunks[0][:index], self._values[0][:index]
        self.start = self._heads[0] = self._chunks[0][0] = offset

    # Internals

    def _position(self, offset: int) -> tuple[int, int]:
        chunk = bisect_right(self._heads, offset) - 1
        return chunk, bisect_right(self._chunks[chunk], offset) - 1

    def _last(self, chunk: int, index: int) -> int:
        firsts = self._chunks[chunk]
        if index + 1 < len(firsts):
            return firsts[index + 1] - 1
        return (self._heads[chunk + 1] if chunk + 1 < len(self._heads) else self.end) - 1

    def _cut(self, offset: int) -> None:
        """Begin a range at this offset."""
        chunk, index = self._position(offset)
        firsts, values = self._chunks[chunk], self._values[chunk]
        if firsts[index] == offset:
            return
        firsts.insert(index + 1, offset)
        values.insert(index + 1, values[index])
        self._size += 1
        if len(firsts) > CHUNK_MAX:
            half = len(firsts) // 2
            self._heads.insert(chunk + 1, firsts[half])
            self._chunks.insert(chunk + 1, firsts[half:])
            self._values.insert(chunk + 1, values[half:])
            del firsts[half:], values[half:]

    def _erase_after(self, chunk: int, index: int, last: int) -> None:
        """Remove the ranges that begin after the one at this position and up to `last`."""
        firsts = self._chunks[chunk]
        end = bisect_right(firsts, last)
        self._size -= end - index - 1
        del firsts[index + 1 : end], self._values[chunk][index + 1 : end]
        after = chunk + 1
        end = bisect_right(self._heads, last)
        if end > after:
            # All of these chunks begin within the range, so all but the last one lie within it.
            self._size -= sum(map(len, self._chunks[after : end - 1]))
            del self._heads[after : end - 1], self._chunks[after : end - 1], self._values[after : end - 1]
            firsts = self._chunks[after]
            end = bisect_right(firsts, last)
            self._size -= end
            del firsts[:end], self._values[after][:end]
            self._tidy(after)
        self._tidy(chunk)

    def _join(self, offset: int) -> None:
        """Make the range that begins at this offset one with the range before it, if their values are equal."""
        chunk, index = self._position(offset)
        firsts, values = self._chunks[chunk], self._values[chunk]
        before = values[index - 1] if index else self._values[chunk - 1][-1]
        if before == values[index]:
            del firsts[index], values[index]
            self._size -= 1
            self._tidy(chunk)

    def _tidy(self, chunk: int) -> None:
        """Restore the head of a chunk whose ranges were removed, and drop or join it if few are left."""
        firsts = self._chunks[chunk]
        if not firsts:
            del self._heads[chunk], self._chunks[chunk], self._values[chunk]
            return
        self._heads[chunk] = firsts[0]
        if (
            len(firsts) < CHUNK_MIN
            and chunk + 1 < len(self._chunks)
            and len(firsts) + len(self._chunks[chunk + 1]) <= CHUNK_MAX // 2
        ):
            firsts += self._chunks[chunk + 1]
            self._values[chunk] += self._values[chunk + 1]
            del self._heads[chunk + 1], self._chunks[chunk + 1], self._values[chunk + 1]
