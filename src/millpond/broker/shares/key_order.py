"""Order by key: of the unfinished records with one key, only the first may be acquired."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection


class KeyOrder:
    """Unfinished records with keys, added in the order of their offsets. Keys are hashes: two keys with the same hash
    are one, which costs time and no order."""

    __slots__ = ("_firsts", "_keys", "_rest")

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        """The first unfinished record of each key."""
        self._rest: dict[int, deque[int]] = {}
        """The records after it, where there are any."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def offsets(self) -> Collection[int]:
        return self._keys

    def add(self, offset: int, key: int) -> None:
        self._keys[offset] = key
        if key in self._firsts:
            self._rest.setdefault(key, deque()).append(offset)
        else:
            self._firsts[key] = offset

    def may_go(self, offset: int) -> bool:
        """Whether no earlier record with its key is unfinished."""
        key = self._keys.get(offset)
        return key is None or self._firsts[key] == offset

    def finish(self, offset: int) -> int | None:
        """The record is finished; returns the next one with its key, if that may now go."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        rest = self._rest.get(key)
        if self._firsts[key] != offset:
            # It was acquired before the group asked for order.
            assert rest is not None
            rest.remove(offset)
            following = None
        elif rest is None:
            del self._firsts[key]
            return None
        else:
            following = self._firsts[key] = rest.popleft()
        if not rest:
            del self._rest[key]
        return following

    def before(self, offset: int) -> list[int]:
        """The records before an offset, in order."""
        found: list[int] = []
        for each in self._keys:
            if each >= offset:
                break
            found.append(each)
        return found

    def clear(self) -> None:
        self._keys.clear()
        self._firsts.clear()
        self._rest.clear()
