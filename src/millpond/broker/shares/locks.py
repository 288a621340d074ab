"""Acquisition locks: which member holds which records, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

EXPIRED_ENTRIES_MIN: Final = 1_000
"""The heap is rebuilt when it has this many more entries without a lock than with one."""


class Lock:
    """Records that a member acquired, or renewed, together. Records that are acknowledged leave it."""

    __slots__ = ("count", "deadline_ms", "entry", "first", "last", "member_id")

    def __init__(self, member_id: str, first: int, last: int, deadline_ms: int) -> None:
        self.member_id = member_id
        self.first = first
        self.last = last
        self.deadline_ms = deadline_ms
        self.count = last - first + 1
        """How many records it still holds. A lock that holds none is gone."""
        self.entry = 0
        """The number of its entry in the heap; an earlier entry no longer counts."""


class Locks:
    """The locks of a partition by member and by deadline."""

    __slots__ = ("_by_member", "_entries", "_heap", "_live", "held_count")

    def __init__(self) -> None:
        self.held_count = 0
        """The number of records that are locked."""
        self._by_member: dict[str, dict[Lock, None]] = {}
        self._heap: list[tuple[int, int, Lock]] = []
        """Deadline, number of the entry, lock. May have entries of locks that are gone."""
        self._entries = 0
        self._live = 0

    def add(self, lock: Lock) -> None:
        self.held_count += lock.count
        self._enter(lock)

    def remove(self, lock: Lock, count: int) -> None:
        """Take `count` records out of the lock."""
        assert lock.count >= count
        lock.count -= count
        self.held_count -= count
        if lock.count == 0:
            self._live -= 1
            locks = self._by_member[lock.member_id]
            del locks[lock]
            if not locks:
                del self._by_member[lock.member_id]
            if len(self._heap) > 2 * self._live + EXPIRED_ENTRIES_MIN:
                self._heap = [entry for entry in self._heap if _is_current(entry)]
                heapify(self._heap)

    def put_back(self, lock: Lock, count: int) -> None:
        """Return records that were removed."""
        was_gone = lock.count == 0
        lock.count += count
        self.held_count += count
        if was_gone:
            self._enter(lock)

    def of_member(self, member_id: str, records_max: int) -> list[Lock]:
        """The locks of a member, until they hold so many records together."""
        found: list[Lock] = []
        count = 0
        for lock in self._by_member.get(member_id, ()):
            if count >= records_max:
                break
            found.append(lock)
            count += lock.count
        return found

    def holders(self) -> Iterator[tuple[str, int, int]]:
        """Each member that holds records, how many, and the first deadline of its locks."""
        for member_id, locks in self._by_member.items():
            yield member_id, sum(each.count for each in locks), min(each.deadline_ms for each in locks)

    def next_deadline_ms(self) -> int | None:
        self._drop_old_entries()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int, records_max: int) -> list[Lock]:
        """The locks that have expired, earliest first, until they hold so many records together. The caller removes
        their records, and enters again what still holds some."""
        due: list[Lock] = []
        count = 0
        self._drop_old_entries()
        while self._heap and self._heap[0][0] <= now_ms and count < records_max:
            due.append(heappop(self._heap)[2])
            count += due[-1].count
            self._drop_old_entries()
        return due

    def enter_again(self, lock: Lock) -> None:
        """It was due, and still holds records."""
        self._push(lock)

    def _enter(self, lock: Lock) -> None:
        self._live += 1
        self._by_member.setdefault(lock.member_id, {})[lock] = None
        self._push(lock)

    def _push(self, lock: Lock) -> None:
        self._entries += 1
        lock.entry = self._entries
        heappush(self._heap, (lock.deadline_ms, lock.entry, lock))

    def _drop_old_entries(self) -> None:
        while self._heap and not _is_current(self._heap[0]):
            heappop(self._heap)


def _is_current(entry: tuple[int, int, Lock]) -> bool:
    _, number, lock = entry
    return lock.count > 0 and lock.entry == number
