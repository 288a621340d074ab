"""Queues by lane: records of one key run one by one, in order, and different keys run in parallel.

No threads in here; the caller holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """A lane is busy from `take` until `release`. Records with lane None never wait."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[T] | None] = {}
        """Records behind the head of their lane. Each ready or busy lane has an entry; None means an empty queue."""
        self._ready: deque[tuple[Hashable | None, T]] = deque()

    def __len__(self) -> int:
        """Records that have not been taken."""
        return len(self._ready) + sum(map(len, self._queues()))

    def ready_count(self) -> int:
        """Records that could be taken now."""
        return len(self._ready)

    def has(self, matches: Callable[[T], bool]) -> bool:
        """Whether a matching record has not been taken."""
        return any(matches(item) for _, item in self._ready) or any(
            matches(item) for waiting in self._queues() for item in waiting
        )

    def add(self, lane: Hashable | None, item: T) -> None:
        if lane is None or lane not in self._waiting:
            if lane is not None:
                self._waiting[lane] = None
            self._ready.append((lane, item))
        elif waiting := self._waiting[lane]:
            waiting.append(item)
        else:
            self._waiting[lane] = deque((item,))

    def take(self) -> T | None:
        """The next record to run; its lane is busy from now on."""
        return self._ready.popleft()[1] if self._ready else None

    def again(self, lane: Hashable | None, item: T) -> None:
        """Run a record again, before those behind it; its lane was kept busy."""
        self._ready.append((lane, item))

    def release(self, lane: Hashable | None) -> None:
        """The lane's record is finished; the next one may run."""
        if lane is None or lane not in self._waiting:
            return
        if waiting := self._waiting[lane]:
            self._ready.append((lane, waiting.popleft()))
        else:
            del self._waiting[lane]

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Drop waiting records; a lane whose ready record was dropped continues with the next."""
        dropped: list[T] = []
        for lane, waiting in self._waiting.items():
            kept: deque[T] = deque()
            for item in waiting or ():
                (dropped if unwanted(item) else kept).append(item)
            self._waiting[lane] = kept
        ready, self._ready = self._ready, deque()
        for lane, item in ready:
            if unwanted(item):
                dropped.append(item)
                self.release(lane)
            else:
                self._ready.append((lane, item))
        return dropped

    def _queues(self) -> Iterator[deque[T]]:
        return (waiting for waiting in self._waiting.values() if waiting)
