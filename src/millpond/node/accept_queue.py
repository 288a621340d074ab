"""Those who were fetched from the kernel and wait to be let in, each address in its turn.

The kernel hands them out first come first served: behind a crowd everybody waits for all of it. Here whoever comes
with many waits for himself, and somebody from another address comes next. There is only so much room. Where it is
full, the address with the most loses the one that came last: others still find a place, and those of a crowd that
have waited longest keep theirs.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class AcceptQueue(Generic[T]):
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._waiting: dict[str, deque[T]] = {}
        """By address, in the order of their turns."""
        self._count = 0
        self._by_size: dict[int, dict[str, None]] = {}
        """The addresses of which so many wait, whoever came to that last at the end."""
        self._most = 0
        """So many wait of the address with the most."""

    def __len__(self) -> int:
        return self._count

    def put(self, address: str, newcomer: T) -> T | None:
        """Let somebody wait; who has to go for that, if somebody has."""
        waiting = self._waiting.setdefault(address, deque())
        waiting.append(newcomer)
        self._count += 1
        self._resize(address, len(waiting) - 1, len(waiting))
        return self._last_of_crowd() if self._count > self._count_max else None

    def next(self) -> T | None:
        """Whose turn it is. The next one of the same address comes after those of all others."""
        if not self._waiting:
            return None
        address = next(iter(self._waiting))
        waiting = self._waiting.pop(address)
        if len(waiting) > 1:
            self._waiting[address] = waiting
        self._count -= 1
        self._resize(address, len(waiting), len(waiting) - 1)
        return waiting.popleft()

    def take_all(self) -> list[T]:
        everybody = [each for waiting in self._waiting.values() for each in waiting]
        self._waiting.clear()
        self._by_size.clear()
        self._count = self._most = 0
        return everybody

    def _last_of_crowd(self) -> T:
        crowd = next(reversed(self._by_size[self._most]))
        waiting = self._waiting[crowd]
        last = waiting.pop()
        if not waiting:
            del self._waiting[crowd]
        self._count -= 1
        self._resize(crowd, len(waiting) + 1, len(waiting))
        return last

    def _resize(self, address: str, before: int, now: int) -> None:
        """One more or one less of an address. The address with the most is known without looking at all of them."""
        if before:
            alike = self._by_size[before]
            del alike[address]
            if not alike:
                del self._by_size[before]
        if now:
            self._by_size.setdefault(now, {})[address] = None
        if now > self._most or self._most not in self._by_size:
            self._most = now
