"""The in-flight window of a share partition: every record from the start offset up to the end offset, with its state.

Pure: time comes in as milliseconds, and what must be written down leaves as a `Change`. Records in a change are
neither acquirable nor acknowledgeable until its write has ended, with `commit` or `roll_back`. So a client that is
told that its acknowledgement succeeded can rely on it, and a record is delivered again only after its delivery count
has been written down.

A record that is accepted, rejected or archived leaves the window once all records before it have. States are kept by
range, and every operation costs O(log n) for each range that it touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import islice
from sys import maxsize
from typing import Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass
from millpond.broker.shares.locks import Lock, Locks
from millpond.coordinators.shares.range_map import RangeMap
from millpond.coordinators.shares.state_batches import TERMINAL, RecordState, StateBatch

RANGES_AT_ONCE: Final = 300
"""One acquisition takes no further range once it has so many that were available before, one by one."""
RETRY_MS: Final = 1_000
"""How long records whose lock has expired stay locked after their release could not be written."""


class AcknowledgeType(IntEnum):
    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    BATCH_OPTIMIZED = 0
    """Whole batches of the log: the last one may exceed the limit of records."""
    RECORD_LIMIT = 1


@dataclass(slots=True)
class ShareSettings:
    lock_duration_ms: int = 30_000
    """`share.record.lock.duration.ms`"""
    delivery_count_limit: int = 5
    """`share.delivery.count.limit`: a record is archived when it is released after this many deliveries."""
    in_flight_max: int = 2_000
    """`share.partition.max.record.locks`: no record is acquired for the first time while so many are unfinished."""

    @property
    def throttle_from(self) -> int:
        """Records with this many deliveries are acquired in ever smaller groups, the last time alone, so that one bad
        record does not use up the deliveries of its neighbours."""
        return max(2, (self.delivery_count_limit + 1) // 2)


class Acquired(NamedTuple):
    """Records that a member received, with the number of their deliveries, this one included."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """A member's verdict on a range: one type for all records, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Slot(NamedTuple):
    """The state of a range. While `change` is pending, the state and deliveries that it will have."""

    state: RecordState
    deliveries: int
    lock: Lock | None = None
    change: Change | None = None


class Move(NamedTuple):
    """A range of a change, as it was before, and as it will be."""

    first: int
    last: int
    before: Slot
    state: RecordState
    deliveries: int


class Change:
    """What to write, and then to `commit` or to `roll_back`. Nothing needs to be written if `batches` is empty."""

    __slots__ = ("batches", "delivery_complete_count", "is_pending", "moves", "start_offset")

    def __init__(self, start_offset: int, moves: Sequence[Move] = ()) -> None:
        self.start_offset = start_offset
        """The start offset before this change, which is certain; it moves when the change is committed."""
        self.moves = moves
        self.batches = _batches_of(moves)
        self.delivery_complete_count = 0
        """The number of finished records from the start offset on."""
        self.is_pending = bool(moves)


class ShareWindow:
    def __init__(self, settings: ShareSettings, start_offset: int) -> None:
        self.settings = settings
        self.in_flight = 0
        """The number of unfinished records in the window."""
        self._slots: RangeMap[Slot] = RangeMap(start_offset)
        self._locks = Locks()
        self._available: list[int] = []
        """A heap of offsets that were available; it has the first one of every available range."""
        self._in_heap: set[int] = set()
        self._complete = 0

    @classmethod
    def load(cls, settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        """The window as it was written down, with batches in order. Where they leave a hole, records were acquired
        and never acknowledged: those are available."""
        window = cls(settings, start_offset)
        slots = window._slots
        for first, last, state, deliveries in batches:
            if last < slots.end:
                continue
            if first > slots.end:
                window._append(first - 1, _slot(RecordState.AVAILABLE, 0))
            window._append(last, _slot(state if state in TERMINAL else RecordState.AVAILABLE, deliveries))
        window._advance()
        return window

    # What there is.

    @property
    def start_offset(self) -> int:
        """All records before it are finished."""
        return self._slots.start

    @property
    def end_offset(self) -> int:
        """The first offset that nobody has acquired yet."""
        return self._slots.end

    @property
    def held_count(self) -> int:
        """The number of records that members hold."""
        return self._locks.held_count

    @property
    def delivery_complete_count(self) -> int:
        """The number of finished records in the window, including those of pending changes."""
        return self._complete

    @property
    def is_full(self) -> bool:
        """Whether nothing can be acquired: nothing is available, and no new record may be added."""
        return self.in_flight >= self.settings.in_flight_max and self.next_fetch_offset() == self.end_offset

    def next_fetch_offset(self) -> int:
        """The first available offset, or the end offset."""
        heap = self._available
        while heap:
            if heap[0] >= self.start_offset and _is_available(self._slots.at(heap[0])):
                return heap[0]
            self._in_heap.discard(heappop(heap))
        return self.end_offset

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` must be called; None if no member holds a record."""
        return self._locks.next_deadline_ms()

    def slots(self, first: int, last: int) -> Iterator[tuple[int, int, Slot]]:
        """The ranges of the window between two offsets. It must not change meanwhile."""
        return self._slots.ranges(first, last)

    # Acquire.

    def acquire(
        self,
        member_id: str,
        first: int,
        last: int,
        now_ms: int,
        *,
        max_records: int,
        batch_size: int,
        mode: AcquireMode,
        batches: Sequence[tuple[int, int]],
    ) -> list[Acquired]:
        """Give a member what is available from `first` to `last`, an interval of the log that was read.

        `batches` are the first and last offsets of the log's batches that members may see, in order. All other
        offsets of the interval hold nothing for them (compaction removed it, it is a control batch or was aborted),
        and are archived as far as the acquisition gets. Long ranges are split at batches, into parts of at least
        `batch_size` records, except with a record limit. An interval that begins after the end offset was read for
        an earlier window, and nothing is acquired.
        """
        if first > self.end_offset:
            return []
        position = max(first, self.start_offset)
        taken = _Acquisition(self, member_id, now_ms, max_records, batch_size, mode)
        for base, batch_last in batches:
            begin, end = max(base, position), min(batch_last, last)
            if begin > end:
                continue
            if taken.is_done:
                break
            if begin > position:
                self._archive(position, begin - 1)
            taken.take_batch(begin, end)
            position = end + 1
        if not taken.is_done and position <= last:
            self._archive(position, last)
        taken.finish()
        self._advance()
        return taken.ranges

    # Acknowledge.

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> Change:
        """Finish, release or renew what the member holds. If it does not hold a part, all is refused."""
        moves: list[Move] = []
        renewals: list[tuple[int, int, Slot]] = []
        _check_form(acknowledgements)
        for acknowledgement in acknowledgements:
            if acknowledgement.last >= self.end_offset:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"offset {acknowledgement.last} has not been acquired: the window ends at {self.end_offset}",
                )
            for first, last, kind in _runs(acknowledgement):
                for begin, end, slot in self._slots.ranges(first, last):
                    if slot.lock is None or slot.lock.member_id != member_id:
                        raise Refused(
                            ErrorCode.INVALID_RECORD_STATE, f"the member does not hold offsets {begin} to {end}"
                        )
                    if kind is AcknowledgeType.RENEW:
                        renewals.append((begin, end, slot))
                    else:
                        moves.append(Move(begin, end, slot, *self._verdict(kind, slot.deliveries)))
        for begin, end, slot in renewals:
            self._renew(begin, end, slot, now_ms)
        return self._begin(moves)

    def release_member(self, member_id: str, *, were_delivered: bool, records_max: int = maxsize) -> Change:
        """Release what the member holds, because its session has ended.

        In an orderly end it returns records that its application has not seen: they do not count as delivered. With
        `records_max` some records may be left; call it again until nothing changes.
        """
        return self._release(
            self._locks.of_member(member_id, records_max), records_max, were_delivered=were_delivered
        )

    def on_timer(self, now_ms: int, records_max: int = maxsize) -> Change:
        """Release the records whose locks have expired. With `records_max` some may be left, whose deadline has then
        passed."""
        due = self._locks.due(now_ms, records_max)
        change = self._release(due, records_max, were_delivered=True)
        for lock in due:
            if lock.count:
                self._locks.enter_again(lock)
        return change

    def commit(self, change: Change) -> None:
        """The change was written."""
        if not change.is_pending:
            return
        change.is_pending = False
        for move in change.moves:
            first = max(move.first, self.start_offset)
            if first > move.last:
                continue
            self._slots.assign(first, move.last, _slot(move.state, move.deliveries))
            if move.state in TERMINAL:
                self.in_flight -= move.last - first + 1
            else:
                self._push_available(first)
        self._advance()

    def roll_back(self, change: Change, now_ms: int) -> None:
        """The change was not written, for certain: members hold its records as before. Where the lock has expired, it
        lasts a moment longer, after which `on_timer` tries again."""
        if not change.is_pending:
            return
        change.is_pending = False
        for move in change.moves:
            first = max(move.first, self.start_offset)
            if first > move.last:
                continue
            lock, count = move.before.lock, move.last - first + 1
            assert lock is not None
            if move.state in TERMINAL:
                self._complete -= count
            if lock.deadline_ms > now_ms:
                self._locks.put_back(lock, count)
            else:
                lock = Lock(lock.member_id, first, move.last, now_ms + RETRY_MS)
                self._locks.add(lock)
            self._slots.assign(first, move.last, move.before._replace(lock=lock))

    # The log.

    def advance_start(self, log_start: int) -> None:
        """The log begins at a later offset: earlier records are gone, even those that members hold."""
        if log_start <= self.start_offset:
            return
        for first, last, slot in self._slots.ranges(self.start_offset, log_start - 1):
            count = last - first + 1
            if slot.state in TERMINAL:
                self._complete -= count
            if slot.state not in TERMINAL or slot.change is not None:
                self.in_flight -= count
            if slot.lock is not None:
                self._locks.remove(slot.lock, count)
        self._slots.drop_before(log_start)
        self._note_available(log_start)
        self._advance()

    # Internals

    def _verdict(self, kind: AcknowledgeType, deliveries: int) -> tuple[RecordState, int]:
        match kind:
            case AcknowledgeType.ACCEPT:
                return RecordState.ACKNOWLEDGED, deliveries
            case AcknowledgeType.RELEASE:
                limit = self.settings.delivery_count_limit
                return (RecordState.AVAILABLE if deliveries < limit else RecordState.ARCHIVED), deliveries
            case _:
                return RecordState.ARCHIVED, deliveries

    def _release(self, locks: list[Lock], ranges_max: int, *, were_delivered: bool) -> Change:
        """Release what these locks hold, as far as it is in so many ranges."""
        moves = (
            Move(first, last, slot, *self._verdict(AcknowledgeType.RELEASE, slot.deliveries))
            if were_delivered
            else Move(first, last, slot, RecordState.AVAILABLE, slot.deliveries - 1)
            for lock in locks
            for first, last, slot in self._slots.ranges(lock.first, lock.last)
            if slot.lock is lock
        )
        return self._begin(sorted(islice(moves, ranges_max)))

    def _begin(self, moves: list[Move]) -> Change:
        change = Change(self.start_offset, moves)
        for move in moves:
            lock, count = move.before.lock, move.last - move.first + 1
            assert lock is not None
            self._locks.remove(lock, count)
            if move.state in TERMINAL:
                self._complete += count
            self._slots.assign(move.first, move.last, Slot(move.state, move.deliveries, None, change))
        change.delivery_complete_count = self._complete
        return change

    def _renew(self, first: int, last: int, slot: Slot, now_ms: int) -> None:
        assert slot.lock is not None
        lock = Lock(slot.lock.member_id, first, last, now_ms + self.settings.lock_duration_ms)
        self._locks.remove(slot.lock, lock.count)
        self._locks.add(lock)
        self._slots.assign(first, last, slot._replace(lock=lock))

    def _archive(self, first: int, last: int) -> None:
        """Archive what nobody holds in these offsets, also past the end. It need not be written down: reading
        the log again gives the same result."""
        found = list(self._slots.ranges(first, last))
        for begin, end, slot in found:
            if _is_available(slot):
                self._slots.assign(begin, end, _slot(RecordState.ARCHIVED, 0))
                self._note_available(end + 1)
                self.in_flight -= end - begin + 1
                self._complete += end - begin + 1
        if last >= self.end_offset:
            self._append(last, _slot(RecordState.ARCHIVED, 0))

    def _append(self, last: int, slot: Slot) -> None:
        first = self.end_offset
        self._slots.append(last, slot)
        if slot.state in TERMINAL:
            self._complete += last - first + 1
        else:
            self.in_flight += last - first + 1
            if slot.state is RecordState.AVAILABLE:
                self._push_available(first)

    def _advance(self) -> None:
        """Move the start offset past finished records."""
        first = self.start_offset
        for begin, end, slot in self._slots.ranges(first, self.end_offset - 1):
            if slot.state not in TERMINAL or slot.change is not None:
                break
            self._complete -= end - begin + 1
            first = end + 1
        if first > self.start_offset:
            self._slots.drop_before(first)

    def _note_available(self, offset: int) -> None:
        """Ranges before this offset changed: if an available one begins here now, remember it."""
        if offset < self.end_offset and _is_available(self._slots.at(offset)):
            self._push_available(offset)

    def _push_available(self, offset: int) -> None:
        if offset not in self._in_heap:
            self._in_heap.add(offset)
            heappush(self._available, offset)


class _Acquisition:
    """The records that one call of `acquire` has taken so far."""

    def __init__(
        self, window: ShareWindow, member_id: str, now_ms: int, max_records: int, batch_size: int, mode: AcquireMode
    ) -> None:
        self.ranges: list[Acquired] = []
        self.is_done = max_records <= 0
        self._window = window
        self._slots = window._slots
        self._settings = window.settings
        self._member_id = member_id
        self._deadline_ms = now_ms + window.settings.lock_duration_ms
        self._left = max_records
        self._batch_size = batch_size
        self._has_record_limit = mode is AcquireMode.RECORD_LIMIT
        self._lock: Lock | None = None
        self._locks: list[Lock] = []
        self._taken_again = 0
        """How many ranges."""

    def take_batch(self, first: int, last: int) -> None:
        """Take what is available of one batch of the log."""
        is_split_here = not self._has_record_limit
        for begin, end, slot in list(self._slots.ranges(first, last)):
            if self.is_done:
                return
            if _is_available(slot):
                self._take_again(begin, end, slot.deliveries, is_split_here)
                is_split_here = False
        if not self.is_done and last >= self._window.end_offset:
            self._take_new(last, is_split_here)
        self.is_done = self.is_done or self._left <= 0

    def finish(self) -> None:
        for lock in self._locks:
            self._window._locks.add(lock)

    def _take_again(self, first: int, last: int, deliveries: int, is_split_here: bool) -> None:
        size = last - first + 1
        if deliveries >= self._settings.throttle_from:
            if self.ranges:
                self.is_done = True
                return
            is_last_delivery = deliveries >= self._settings.delivery_count_limit - 1
            size = 1 if is_last_delivery else max(1, size >> (deliveries - self._settings.throttle_from + 1))
            self.is_done = True
        if self._has_record_limit:
            size = min(size, self._left)
        end = first + size - 1
        slot = Slot(RecordState.ACQUIRED, deliveries + 1, self._lock_for(first, end))
        self._slots.assign(first, end, slot)
        self._window._note_available(end + 1)
        self._took(first, end, deliveries + 1, is_split_here)
        self._taken_again += 1
        if self._taken_again == RANGES_AT_ONCE:
            self.is_done = True

    def _take_new(self, last: int, is_split_here: bool) -> None:
        first = self._window.end_offset
        room = self._settings.in_flight_max - self._window.in_flight
        if room <= 0:
            self.is_done = True
            return
        end = min(last, first + min(room, self._left) - 1) if self._has_record_limit else last
        self._window._append(end, Slot(RecordState.ACQUIRED, 1, self._lock_for(first, end)))
        self._took(first, end, 1, is_split_here)
        self.is_done = self.is_done or end < last

    def _lock_for(self, first: int, last: int) -> Lock:
        """The lock of the range before, if this one continues it, or a new one."""
        if self._lock is not None and self._lock.last == first - 1:
            self._lock.last = last
            self._lock.count += last - first + 1
        else:
            self._lock = Lock(self._member_id, first, last, self._deadline_ms)
            self._locks.append(self._lock)
        return self._lock

    def _took(self, first: int, last: int, deliveries: int, is_split_here: bool) -> None:
        self._left -= last - first + 1
        if self._has_record_limit and self._left == 0:
            self.is_done = True
        before = self.ranges[-1] if self.ranges else None
        if (
            before is not None
            and (before.last, before.deliveries) == (first - 1, deliveries)
            and not (is_split_here and first - before.first >= self._batch_size)
        ):
            self.ranges[-1] = before._replace(last=last)
        else:
            self.ranges.append(Acquired(first, last, deliveries))


_SLOTS: Final = {state: Slot(state, 0) for state in RecordState}


def _slot(state: RecordState, deliveries: int) -> Slot:
    """A range that nobody holds. The delivery counts of finished records are not kept, so that neighbours are one."""
    return _SLOTS[state] if deliveries == 0 or state in TERMINAL else Slot(state, deliveries)


def _is_available(slot: Slot) -> bool:
    return slot.state is RecordState.AVAILABLE and slot.change is None


def _check_form(acknowledgements: Sequence[Acknowledgement]) -> None:
    end = -1
    for first, last, types in acknowledgements:
        if not end < first <= last:
            raise Refused(ErrorCode.INVALID_REQUEST, f"offsets {first} to {last} are out of order")
        if len(types) != 1 and len(types) != last - first + 1:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{len(types)} types for offsets {first} to {last}")
        if not all(AcknowledgeType.GAP <= each <= AcknowledgeType.RENEW for each in types):
            raise Refused(ErrorCode.INVALID_REQUEST, f"unknown acknowledge type among {list(types)}")
        end = last


def _runs(acknowledgement: Acknowledgement) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """The ranges with the same type."""
    first, last, types = acknowledgement
    if len(types) == 1:
        yield first, last, AcknowledgeType(types[0])
        return
    begin = 0
    for index in range(1, len(types) + 1):
        if index == len(types) or types[index] != types[begin]:
            yield first + begin, first + index - 1, AcknowledgeType(types[begin])
            begin = index


def _batches_of(moves: Sequence[Move]) -> list[StateBatch]:
    """What to write, with neighbours of the same state and count as one."""
    batches: list[StateBatch] = []
    for first, last, _, state, deliveries in moves:
        before = batches[-1] if batches else None
        if before is not None and (before.last, before.state, before.deliveries) == (first - 1, state, deliveries):
            batches[-1] = before._replace(last=last)
        else:
            batches.append(StateBatch(first, last, state, deliveries))
    return batches
