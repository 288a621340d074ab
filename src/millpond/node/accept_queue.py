"""Accepted sockets that wait to be served, with a fair turn for each address.

The kernel returns them in order: behind a burst everyone waits for all of it. Here a client with many connections
waits for itself, and another address comes next. The queue is bounded. If it is full, the address with the most
entries loses its newest one: others still find a place, and the oldest of a burst keep theirs.
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
        """Addresses by their number of waiting connections, most recently changed last."""
        self._most = 0
        """The largest number that any address has waiting."""

    def __len__(self) -> int:
        return self._count

    def put(self, address: str, newcomer: T) -> T | None:
        """Queue a connection; the one that is dropped for it, if any."""
        waiting = self._waiting.setdefault(address, deque())
        waiting.append(newcomer)
        self._count += 1
        self._resize(address, len(waiting) - 1, len(waiting))
        return self._last_of_crowd() if self._count > self._count_max else None

    def next(self) -> T | None:
        """The next connection. Its address then goes behind all others."""
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
        """Move an address to another count. The address with the most entries is found without a search."""
        if before:
            alike = self._by_size[before]
            del alike[address]
            if not alike:
                del self._by_size[before]
        if now:
            self._by_size.setdefault(now, {})[address] = None
        if now > self._most or self._most not in self._by_size:
            self._most = now
