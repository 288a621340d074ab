"""Cuts a request with long lists into pieces, and joins their responses.

Each item is answered on its own, so the result is that of sending the pieces one after the other. The one difference:
a handler does not notice a duplicate if the two are in different pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from millpond.base.errors import RemoteError
from millpond.base.values import dataclass
from millpond.wire.model import Message, Struct

S = TypeVar("S", bound=Struct)

PIECE_ITEMS: Final = 250
"""Items per piece; the slowest APIs take a few milliseconds for this many."""


CHARACTERS_PER_ITEM: Final = 1_000
"""Strings of this length together count as another item of a piece."""


class Indivisible(RemoteError):
    """The request has more items that must be handled together than fit into one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Which list of a request is cut, and which list of the response is joined.

    Each is a path: `topics`, then `partitions` of each topic. Elements of the last list stay whole.
    """

    of: tuple[str, ...]
    into: tuple[str, ...]
    beside: str | None = None
    """Another list of the response, joined without duplicates."""
    once: Callable[[Any], Hashable] | None = None
    """The key of an item of the first list, if duplicates are answered once; None if each is answered."""
    items: int = PIECE_ITEMS
    """Items per piece."""
    weigh: Callable[[Any], int] | None = None
    """How many items an element of the last list counts for, if not the number of items in its own lists."""
    one_by_one: bool = False
    """Whether a piece starts only after the previous one is answered, because handlers use steps or a worker."""

    def cut(self, request: Message, whole_max: int) -> Iterator[tuple[Message, int]]:
        """The pieces, each with the number of outer structures that it continues from the previous piece."""
        if self.once is not None:
            request = _emptied(request, self.of[0], list(_first_of_each(getattr(request, self.of[0]), self.once)))
        return _Cut(request, self.of, self.items, whole_max, self.weigh).pieces()

    def join(self, answers: Sequence[tuple[Any, int]]) -> Any:
        """The joined response; if one has a top-level error, that one."""
        for answer, _ in answers:
            if getattr(answer, "error_code", 0):
                return answer
        joined = answers[0][0]
        for answer, common in answers[1:]:
            _extend(joined, answer, self.into, common)
            if self.beside is not None:
                there = getattr(joined, self.beside)
                there += [each for each in getattr(answer, self.beside) if each not in there]
        return joined


def way(
    of: str,
    into: str,
    *,
    beside: str | None = None,
    once: Callable[[Any], Hashable] | None = None,
    items: int = PIECE_ITEMS,
    weigh: Callable[[Any], int] | None = None,
    one_by_one: bool = False,
) -> Pieces:
    """`topics.partitions` of a request become `responses.partitions` of the response."""
    return Pieces(tuple(of.split(".")), tuple(into.split(".")), beside, once, items, weigh, one_by_one)


def _first_of_each(items: Iterable[Any], known_by: Callable[[Any], Hashable]) -> Iterator[Any]:
    seen = set()
    for each in items:
        key = known_by(each)
        if key is None or key not in seen:
            seen.add(key)
            yield each


def weight(value: Any) -> int:
    """One for the value itself, plus all items of all nested lists."""
    if not isinstance(value, Struct):
        return 1
    total = 1
    for name in value._names:
        inner = getattr(value, name)
        if isinstance(inner, list):
            total += sum(map(weight, inner)) if inner and isinstance(inner[0], Struct) else len(inner)
        elif isinstance(inner, Struct):
            total += weight(inner) - 1
    return total


def bulk(value: Any) -> int:
    """How many additional items the strings of a value count for."""
    return _characters(value) // CHARACTERS_PER_ITEM


def _characters(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return sum(map(_characters, value)) if value and isinstance(value[0], str | bytes | Struct) else 0
    if isinstance(value, Struct):
        return sum(_characters(getattr(value, name)) for name in value._names)
    return 0


class _Cut:
    def __init__(
        self,
        whole: Message,
        of: tuple[str, ...],
        items: int,
        whole_max: int,
        weigh: Callable[[Any], int] | None = None,
    ) -> None:
        self._of = of
        self._weigh = weigh
        self._items = items
        self._whole_max = whole_max
        self._sources: list[Struct] = [whole]
        """The structures on the path to the current position."""
        self._copies: list[Struct] = [_emptied(whole, of[0])]
        """The current piece's copy of each of them."""
        self._weight = 0
        self._common = 0

    def pieces(self) -> Iterator[tuple[Any, int]]:
        yield from self._walk(0)
        yield self._copies[0], self._common

    def _walk(self, depth: int) -> Iterator[tuple[Any, int]]:
        of = self._of
        inner_name = of[depth + 1] if depth + 1 < len(of) else None
        for each in getattr(self._sources[depth], of[depth]):
            goes_on = inner_name is not None and getattr(each, inner_name)
            heavy = 1 if goes_on else weight(each)
            # The enclosing structures count, too.
            if depth + heavy > self._whole_max:
                raise Indivisible(
                    f"{type(each).__qualname__} has lists of {heavy - 1} items, which must be handled as one: "
                    f"at most {self._whole_max} are taken"
                )
            if self._weigh is not None and inner_name is None:
                heavy = self._weigh(each)
            elif goes_on:
                heavy += sum(bulk(getattr(each, name)) for name in each._names if name != inner_name)
            else:
                heavy += bulk(each)
            if self._weight and self._weight + heavy > self._items:
                yield self._copies[0], self._common
                self._begin_piece(depth)
            self._weight += heavy
            there = getattr(self._copies[depth], of[depth])
            if not goes_on:
                there.append(each)
                continue
            assert inner_name is not None
            copy = _emptied(each, inner_name)
            there.append(copy)
            self._sources.append(each)
            self._copies.append(copy)
            yield from self._walk(depth + 1)
            self._sources.pop()
            self._copies.pop()

    def _begin_piece(self, depth: int) -> None:
        self._weight = 0
        self._common = depth
        self._copies = [_emptied(each, name) for each, name in zip(self._sources, self._of, strict=False)]
        for outer, inner, name in zip(self._copies, self._copies[1:], self._of, strict=False):
            getattr(outer, name).append(inner)


def _emptied(value: S, name: str, items: list[Any] | None = None) -> S:
    """A copy with this list replaced, by an empty one unless `items` is given."""
    copy = object.__new__(type(value))
    for each in value._names:
        setattr(copy, each, getattr(value, each))
    setattr(copy, name, items or [])
    return copy


def _extend(there: Struct, more: Struct, into: tuple[str, ...], common: int) -> None:
    name, *rest = into
    begun, further = getattr(there, name), getattr(more, name)
    if common and rest and begun and further and _are_one(begun[-1], further[0], rest[0]):
        if not _failed(begun[-1]):
            if _failed(further[0]):
                # Without the error, a partial result would look complete.
                begun[-1] = further[0]
            else:
                _extend(begun[-1], further[0], tuple(rest), common - 1)
        further = further[1:]
    begun += further


def _failed(value: Struct) -> bool:
    return bool(getattr(value, "error_code", 0))


_OF_ERRORS: Final = ("error_code", "error_message")


def _are_one(first: Struct, second: Struct, name: str) -> bool:
    """Whether two structures differ only in this list, or because one of them has an error."""
    names = first._names
    if _failed(first) or _failed(second):
        names = tuple(each for each in names if each not in _OF_ERRORS)
    return all(getattr(first, each) == getattr(second, each) for each in names if each != name)
