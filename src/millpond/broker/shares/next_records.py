"""The records of a share window that nobody holds, and which of them comes next.

Some may be acquired at once. Others wait: for a time, because they are delayed, or for the end of an earlier record
with their key. Records that wait, or that were looked at and never acquired, are not in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.delays import Delays
from millpond.broker.shares.key_order import KeyOrder
from millpond.broker.shares.ready import PRIORITY_DEFAULT, Ready
from millpond.broker.shares.slots import Slot, Waits, is_available, slot_of
from millpond.coordinators.shares.state_batches import NO_TIME, TERMINAL, RecordState

if TYPE_CHECKING:
    from millpond.coordinators.shares.range_map import RangeMap

V = TypeVar("V")

PASSED_OVER_MAX: Final = 10
"""After this many acquisitions in a row that passed over an earlier record with a lower priority, the earliest record
comes next, whatever its priority."""


class Fact(NamedTuple):
    """What a record says about its delivery."""

    offset: int
    key: int | None = None
    """A hash of its key; None if it has none, or if the group does not ask for order by key."""
    priority: int = PRIORITY_DEFAULT
    due_ms: int = NO_TIME


class Upcoming:
    __slots__ = (
        "_due_behind",
        "_known",
        "_looked",
        "_passed_over",
        "_priorities",
        "_slots",
        "_tried",
        "delays",
        "keys",
        "waiting",
    )

    def __init__(self, slots: RangeMap[Slot]) -> None:
        self._slots = slots
        self._looked = slots.start
        self.waiting = 0
        """The number of records that are not in flight."""
        self.delays = Delays()
        self.keys = KeyOrder()
        self._priorities: dict[int, int] = {}
        """Those that are not the default."""
        self._due_behind: dict[int, int] = {}
        """When records that wait for an earlier one with their key fall due."""
        self._tried = Ready(lambda offset, priority: self._is_current(offset, priority, Waits.NO))
        self._known = Ready(lambda offset, priority: self._is_current(offset, priority, Waits.FOR_MEMBER))
        self._passed_over = 0

    # Looking ahead.

    @property
    def looked(self) -> int:
        """The first offset that may have to be looked at."""
        return max(self._looked, self._slots.start)

    @looked.setter
    def looked(self, offset: int) -> None:
        self._looked = offset

    @property
    def ahead_count(self) -> int:
        """Records that are known, were never acquired, and are not delayed."""
        return self.waiting - self.delays.count

    def look_again(self) -> None:
        """The group begins to ask for an order: look at everything from the start on."""
        self._looked = self._slots.start
        self.keys.clear()
        self._priorities.clear()

    def note(self, fact: Fact) -> None:
        """The record is unfinished: remember its key and its priority."""
        if fact.priority != PRIORITY_DEFAULT:
            self._priorities[fact.offset] = fact.priority
        if fact.key is not None:
            self.keys.add(fact.offset, fact.key)

    def waits_as(self, fact: Fact, wall_ms: int) -> Waits:
        """Why a record waits that nobody has acquired."""
        if not self.keys.may_go(fact.offset):
            if fact.due_ms > wall_ms:
                self._due_behind[fact.offset] = fact.due_ms
            return Waits.FOR_KEY
        return Waits.FOR_TIME if fact.due_ms > wall_ms else Waits.FOR_MEMBER

    def learn_again(self, fact: Fact, wall_ms: int) -> None:
        """A record in the window was looked at."""
        offset = fact.offset
        slot = self._slots.at(offset)
        if slot.state in TERMINAL and slot.change is None:
            return
        self.note(fact)
        if slot.state is not RecordState.AVAILABLE or slot.change is not None or slot.waits is Waits.FOR_TIME:
            return
        waits = self.waits_as(fact, wall_ms)
        if waits is Waits.FOR_MEMBER and slot.waits is Waits.FOR_KEY:
            self.free(offset, offset)
        elif waits is Waits.FOR_MEMBER:
            self.push(offset, offset, slot)
        else:
            if slot.waits is Waits.NO:
                self.waiting += 1
            self._slots.assign(offset, offset, Slot(RecordState.AVAILABLE, slot.deliveries, waits=waits))
            if waits is Waits.FOR_TIME:
                self.delays.add(offset, offset, fact.due_ms, by_header=True)
        self.push_at(offset + 1)

    def forget_keys(self, first: int, last: int) -> None:
        """Records that are not known to have a key wait for none."""
        if self.waiting:
            for begin, end, slot in list(self._slots.ranges(first, last)):
                if slot.waits is Waits.FOR_KEY:
                    self.free(begin, end)

    # Changes.

    def entered(self, first: int, last: int, slot: Slot) -> None:
        """Available records were appended to the window."""
        if slot.waits:
            self.waiting += last - first + 1
        if is_available(slot):
            self.push(first, last, slot)

    def release(self, first: int, last: int, deliveries: int, due_ms: int) -> None:
        """Records were released, and this is written."""
        if due_ms != NO_TIME:
            self._slots.assign(first, last, Slot(RecordState.AVAILABLE, deliveries, waits=Waits.FOR_TIME))
            self.waiting += last - first + 1
            self.delays.add(first, last, due_ms, by_header=False)
            return
        for begin, end, may_go in self._by_key(first, last):
            slot = slot_of(RecordState.AVAILABLE, deliveries)
            if not may_go:
                slot = Slot(RecordState.AVAILABLE, deliveries, waits=Waits.FOR_KEY)
                self.waiting += end - begin + 1
            self._slots.assign(begin, end, slot)
            if may_go:
                self.push(begin, end, slot)

    def free_due(self, wall_ms: int, ranges_max: int) -> None:
        for first, last in self.delays.due(wall_ms, self._slots.start, ranges_max):
            self.free(first, last)

    def free(self, first: int, last: int) -> None:
        """These records wait no longer, except for earlier ones with their keys."""
        for begin, end, before in list(self._slots.ranges(first, last)):
            for run_first, run_last, may_go in self._by_key(begin, end):
                waits = Waits.FOR_MEMBER
                if not may_go:
                    waits = Waits.FOR_KEY
                elif before.deliveries:
                    waits = Waits.NO
                    self.waiting -= run_last - run_first + 1
                slot = Slot(RecordState.AVAILABLE, before.deliveries, waits=waits)
                self._slots.assign(run_first, run_last, slot)
                if may_go:
                    self.push(run_first, run_last, slot)

    def finished(self, first: int, last: int) -> None:
        """Records are finished: the next ones with their keys may go."""
        for offset in _within(self._priorities, first, last):
            del self._priorities[offset]
        for offset in _within(self.keys.offsets, first, last):
            self._finish(offset)

    def passed(self, first: int, slots: list[tuple[int, int, Slot]]) -> None:
        """The window begins at a later offset; these ranges were before it."""
        for begin, end, slot in slots:
            if slot.waits:
                self.waiting -= end - begin + 1
            if slot.waits is Waits.FOR_TIME:
                self.delays.count -= end - begin + 1
        for offset in self.keys.before(first):
            self._finish(offset)
        for offset in [each for each in self._priorities if each < first]:
            del self._priorities[offset]

    def _finish(self, offset: int) -> None:
        self._due_behind.pop(offset, None)
        following = self.keys.finish(offset)
        if following is None or not self._slots.start <= following < self._slots.end:
            return
        slot = self._slots.at(following)
        if slot.waits is not Waits.FOR_KEY:
            return
        due_ms = self._due_behind.pop(following, NO_TIME)
        if due_ms == NO_TIME:
            self.free(following, following)
        else:
            self._slots.assign(following, following, slot._replace(waits=Waits.FOR_TIME))
            self.delays.add(following, following, due_ms, by_header=True)

    # What comes next.

    def next(self, *, has_room: bool) -> tuple[int, int] | None:
        """The first record that comes next, and its priority. Without room, only what was acquired before."""
        if not self._priorities:
            tried = self._tried.first(PRIORITY_DEFAULT)
            known = self._known.first(PRIORITY_DEFAULT) if has_room else None
            first = tried if known is None or (tried is not None and tried < known) else known
            return None if first is None else (first, PRIORITY_DEFAULT)
        firsts = list(self._tried.firsts())
        if has_room:
            firsts += self._known.firsts()
        if not firsts:
            return None
        if len(firsts) > 1 and self._passed_over >= PASSED_OVER_MAX:
            priority, offset = min(firsts, key=lambda each: each[1])
        else:
            priority, offset = max(firsts, key=lambda each: (each[0], -each[1]))
        return offset, priority

    def acquired(self, first: int, *, has_room: bool) -> None:
        """Records from this offset on were acquired, with room for new ones before."""
        if self._priorities:
            firsts = [*self._tried.firsts(), *(self._known.firsts() if has_room else ())]
            if any(offset < first for _, offset in firsts):
                self._passed_over += 1
            elif has_room:
                # Without room, an earlier record that is new may be waiting.
                self._passed_over = 0

    def runs(self, first: int, last: int, priority: int | None) -> list[tuple[int, int, Slot]]:
        """The ranges between two offsets that may be acquired, of one priority."""
        ranges = [each for each in self._slots.ranges(first, last) if is_available(each[2])]
        if priority is None or not self._priorities:
            return ranges
        return [
            (begin, end, slot)
            for range_first, range_last, slot in ranges
            for begin, end, found in self._by_priority(range_first, range_last)
            if found == priority
        ]

    def push(self, first: int, last: int, slot: Slot) -> None:
        """These records may be acquired."""
        ready = self._known if slot.waits is Waits.FOR_MEMBER else self._tried
        for begin, _, priority in self._by_priority(first, last):
            ready.push(begin, priority)

    def push_at(self, offset: int) -> None:
        """Ranges before this offset changed: if one begins here now that may be acquired, remember it."""
        if self._slots.start <= offset < self._slots.end:
            slot = self._slots.at(offset)
            if is_available(slot):
                self.push(offset, offset, slot)

    # Internals

    def _is_current(self, offset: int, priority: int, waits: Waits) -> bool:
        if offset < self._slots.start:
            return False
        if self._priorities and self._priorities.get(offset, PRIORITY_DEFAULT) != priority:
            return False
        slot = self._slots.at(offset)
        return slot.waits is waits and is_available(slot)

    def _by_priority(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """The runs of one priority."""
        priorities = self._priorities
        return _runs(
            first, last, PRIORITY_DEFAULT, [(each, priorities[each]) for each in _within(priorities, first, last)]
        )

    def _by_key(self, first: int, last: int) -> list[tuple[int, int, bool]]:
        """The runs of records that may go, as far as their keys are concerned, and of those that may not."""
        keys = self.keys
        return _runs(first, last, True, [(each, keys.may_go(each)) for each in _within(keys.offsets, first, last)])


def _within(offsets: Collection[int], first: int, last: int) -> list[int]:
    """Those between two offsets, in order. A batch may claim to have billions of records: a range is not gone through
    if it is longer than what is known."""
    if last - first < len(offsets):
        return [each for each in range(first, last + 1) if each in offsets]
    return sorted(each for each in offsets if first <= each <= last)


def _runs(first: int, last: int, usual: V, exceptions: Iterable[tuple[int, V]]) -> list[tuple[int, int, V]]:
    """The range in runs of equal values."""
    runs: list[tuple[int, int, V]] = []

    def add(begin: int, end: int, value: V) -> None:
        if runs and runs[-1][2] == value:
            runs[-1] = runs[-1][0], end, value
        else:
            runs.append((begin, end, value))

    for offset, value in exceptions:
        if offset > first:
            add(first, offset - 1, usual)
        add(offset, offset, value)
        first = offset + 1
    if first <= last:
        add(first, last, usual)
    return runs
