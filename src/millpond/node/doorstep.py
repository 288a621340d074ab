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


class Doorstep(Generic[T]):
    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._waiting: dict[str, deque[T]] = {}
        """By address, in the order of their turns."""
        self._count = 0
        self._crowd = ""
        """An address with as many as any, when it was last looked for; others may have more by now."""

    def __len__(self) -> int:
        return self._count

    def put(self, address: str, newcomer: T) -> T | None:
        """Let somebody wait; who has to go for that, if somebody has."""
        waiting = self._waiting.setdefault(address, deque())
        waiting.append(newcomer)
        self._count += 1
        if len(waiting) >= len(self._waiting.get(self._crowd, ())):
            self._crowd = address
        if self._count <= self._count_max:
            return None
        # Where all have about as many nobody is looked for: there may be thousands of addresses.
        if len(waiting) * len(self._waiting) >= self._count:
            self._crowd = address
        return self._last_of_crowd()

    def next(self) -> T | None:
        """Whose turn it is. The next one of the same address comes after those of all others."""
        if not self._waiting:
            return None
        address = next(iter(self._waiting))
        waiting = self._waiting.pop(address)
        if len(waiting) > 1:
            self._waiting[address] = waiting
        self._count -= 1
        return waiting.popleft()

    def take_all(self) -> list[T]:
        everybody = [each for waiting in self._waiting.values() for each in waiting]
        self._waiting.clear()
        self._count = 0
        return everybody

    def _last_of_crowd(self) -> T:
        # All addresses are looked at only where the crowd that was known has come down to what is usual.
        if len(self._waiting.get(self._crowd, ())) * len(self._waiting) <= self._count:
            self._crowd = max(self._waiting, key=lambda address: len(self._waiting[address]))
        waiting = self._waiting[self._crowd]
        last = waiting.pop()
        if not waiting:
            del self._waiting[self._crowd]
        self._count -= 1
        return last
