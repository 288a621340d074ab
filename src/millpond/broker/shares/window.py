"""The in-flight window of a share partition: every record from the start offset up to the end offset, with its state.

Pure: time comes in as milliseconds, and what must be written down leaves as a `Change`. Records in a change are
neither acquirable nor acknowledgeable until its write has ended, with `commit` or `roll_back`. So a client that is
told that its acknowledgement succeeded can rely on it, and a record is delivered again only after its delivery count
has been written down.

A record that is accepted, rejected or archived leaves the window once all records before it have. Where the group has
a dead-letter topic, a record that is given up is archived in two steps: it is ARCHIVING until its letter is written.
States are kept by range, and every operation costs O(log n) for each range that it touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from sys import maxsize
from typing import Final

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.shares.acquisition import Acquired, AcquireMode, Acquisition
from millpond.broker.shares.counts import Totals, WindowCounts
from millpond.broker.shares.failures import failure_of
from millpond.broker.shares.locks import Lock, Locks
from millpond.broker.shares.look_ahead import learn
from millpond.broker.shares.next_records import Fact, Upcoming
from millpond.broker.shares.offset_heap import OffsetHeap
from millpond.broker.shares.slots import Cause, Change, Move, Slot, Waits, is_archiving, is_available, slot_of
from millpond.broker.shares.verdicts import Acknowledgement, AcknowledgeType, check_form, runs
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares.range_map import RangeMap
from millpond.coordinators.shares.state_batches import NO_TIME, TERMINAL, Failure, RecordState, StateBatch

RETRY_MS: Final = 1_000
"""How long records whose lock has expired stay locked after their release could not be written."""


CAUSES: Final = {
    AcknowledgeType.GAP: Cause.GAP,
    AcknowledgeType.ACCEPT: Cause.ACCEPTED,
    AcknowledgeType.RELEASE: Cause.RELEASED,
    AcknowledgeType.REJECT: Cause.REJECTED,
}


class ShareWindow:
    def __init__(self, settings: ShareSettings, start_offset: int) -> None:
        self.settings = settings
        self._slots: RangeMap[Slot] = RangeMap(start_offset)
        self.upcoming: Final = Upcoming(self._slots)
        self._locks = Locks()
        self._unfinished = 0
        """The number of unfinished records in the window."""
        self._complete = 0
        self._in_changes = 0
        """The number of records in changes that are being written, without those that will be ARCHIVING."""
        self.archiving_count = 0
        """The number of records that are ARCHIVING, or will be once that is written."""
        self.lost_letters = 0
        """The number of records that the log deleted before their letters were written."""
        self._archiving = OffsetHeap()
        """Has the first offset of every range that is ARCHIVING."""
        self._totals = Totals()

    @classmethod
    def load(cls, settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        """The window as it was written down, with batches in order. Where they leave a hole, records were acquired
        and never acknowledged: those are available."""
        window = cls(settings, start_offset)
        slots = window._slots
        for first, last, state, deliveries, due_ms, failure in batches:
            if last < slots.end:
                continue
            if first > slots.end:
                window.append(first - 1, slot_of(RecordState.AVAILABLE, 0))
            is_kept = state in TERMINAL or state is RecordState.ARCHIVING
            slot = slot_of(state, deliveries, failure) if is_kept else slot_of(RecordState.AVAILABLE, deliveries)
            if slot.state is RecordState.AVAILABLE and due_ms > NO_TIME:
                slot = slot._replace(waits=Waits.FOR_TIME)
                window.upcoming.delays.add(slots.end, last, due_ms, by_header=False)
            window.append(last, slot)
        window._advance()
        return window

    # What there is.

    @property
    def start_offset(self) -> int:
        """All records before it are finished."""
        return self._slots.start

    @property
    def end_offset(self) -> int:
        """The first offset that nobody has acquired or looked at yet."""
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
    def totals(self) -> Totals:
        """What has happened since the window was loaded."""
        return self._totals

    @property
    def in_flight(self) -> int:
        """The number of unfinished records that were acquired, and are not delayed."""
        return self._unfinished - self.upcoming.waiting

    @property
    def has_room(self) -> bool:
        """Whether a record may be acquired for the first time."""
        return self.in_flight < self.settings.in_flight_max

    def counts(self) -> WindowCounts:
        total, totals = self.end_offset - self.start_offset, self._totals
        delayed = self.upcoming.delays.count
        available = self._unfinished - self.held_count - self._in_changes - delayed - self.archiving_count
        return WindowCounts(
            available=available,
            acquired=total - self._complete - available - delayed - self.archiving_count,
            delayed=delayed,
            archiving=self.archiving_count,
            finished=self._complete,
            next_due_ms=self.next_due_ms(),
            delivered=totals.delivered,
            accepted=totals.accepted,
            released=totals.released,
            rejected=totals.rejected,
            expired=totals.expired,
        )

    @property
    def is_full(self) -> bool:
        """Whether nothing can be acquired: nothing is available, and no new record may be added."""
        return not self.has_room and self.next_fetch_offset() == self.end_offset

    def next_fetch_offset(self) -> int:
        """Where the next records are that may be acquired: an available offset, or the end offset."""
        following = self.upcoming.next(has_room=self.has_room)
        return self.end_offset if following is None else following[0]

    def next_due_ms(self) -> int:
        """When `free_due` must be called, by the wall clock; -1 if no record is delayed."""
        return self.upcoming.delays.next_due_ms(self.start_offset)

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` must be called; None if no member holds a record."""
        return self._locks.next_deadline_ms()

    def holders(self) -> Iterator[tuple[str, int, int]]:
        """Who holds records: the holder, their number, and when its first lock expires."""
        return self._locks.holders()

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
        if self.settings.is_ordered or self.settings.delay_enable:
            last = min(last, self.upcoming.looked - 1)
        position = max(first, self.start_offset)
        following, has_room = self.upcoming.next(has_room=self.has_room), self.has_room
        deadline_ms = now_ms + self.settings.lock_duration_ms
        taken = Acquisition(self, member_id, deadline_ms, max_records, batch_size, mode)
        taken.priority = None if following is None else following[1]
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
        for lock in taken.locks:
            self._locks.add(lock)
        if taken.ranges:
            self._totals.delivered += taken.count
            self.upcoming.acquired(taken.ranges[0].first, has_room=has_room)
        self._advance()
        return taken.ranges

    # What an acquisition does.

    def hold(self, first: int, last: int, before: Slot, lock: Lock) -> None:
        """Available records are acquired."""
        if before.waits:
            self.upcoming.waiting -= last - first + 1
        self._slots.assign(first, last, Slot(RecordState.ACQUIRED, before.deliveries + 1, lock))
        self.upcoming.push_at(last + 1)

    def hold_new(self, last: int, lock: Lock) -> None:
        """The records from the end offset up to `last` are acquired."""
        self.append(last, Slot(RecordState.ACQUIRED, 1, lock))

    # Acknowledge.

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], now_ms: int, wall_ms: int = 0
    ) -> Change:
        """Finish, release or renew what the member holds. If it does not hold a part, all is refused."""
        moves: list[Move] = []
        renewals: list[tuple[int, int, Slot]] = []
        check_form(acknowledgements)
        for acknowledgement in acknowledgements:
            if acknowledgement.last >= self.end_offset:
                raise Refused(
                    ErrorCode.INVALID_REQUEST,
                    f"offset {acknowledgement.last} has not been acquired: the window ends at {self.end_offset}",
                )
            for first, last, kind in runs(acknowledgement):
                for begin, end, slot in self._slots.ranges(first, last):
                    if slot.lock is None or slot.lock.member_id != member_id:
                        raise Refused(
                            ErrorCode.INVALID_RECORD_STATE, f"the member does not hold offsets {begin} to {end}"
                        )
                    if kind is AcknowledgeType.RENEW:
                        renewals.append((begin, end, slot))
                        continue
                    move = self._move(begin, end, slot, kind, CAUSES[kind], acknowledgement.failure)
                    if move.state is RecordState.AVAILABLE and acknowledgement.delay_ms > 0:
                        move = move._replace(due_ms=wall_ms + acknowledgement.delay_ms)
                    moves.append(move)
        for begin, end, slot in renewals:
            self._renew(begin, end, slot, now_ms)
        return self._begin(moves)

    def release_member(self, member_id: str, *, were_delivered: bool, records_max: int = maxsize) -> Change:
        """Release what the member holds, because its session has ended.

        In an orderly end it returns records that its application has not seen: they do not count as delivered. With
        `records_max` some records may be left; call it again until nothing changes.
        """
        locks = self._locks.of_member(member_id, records_max)
        return self._release(locks, records_max, Cause.RELEASED, were_delivered=were_delivered)

    def on_timer(self, now_ms: int, records_max: int = maxsize) -> Change:
        """Release the records whose locks have expired. With `records_max` some may be left, whose deadline has then
        passed."""
        due = self._locks.due(now_ms, records_max)
        change = self._release(due, records_max, Cause.EXPIRED, were_delivered=True)
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
            count = move.last - first + 1
            self._totals.add(move.cause, count)
            if move.state is RecordState.ARCHIVING:
                self._slots.assign(first, move.last, slot_of(move.state, move.deliveries, move.failure))
                self._archiving.push(first)
                continue
            self._in_changes -= count
            if move.state in TERMINAL:
                self._slots.assign(first, move.last, slot_of(move.state, move.deliveries))
                self._unfinished -= count
                self.upcoming.finished(first, move.last)
            else:
                self.upcoming.release(first, move.last, move.deliveries, move.due_ms)
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
            if move.state is RecordState.ARCHIVING:
                self.archiving_count -= count
            else:
                self._in_changes -= count
            if move.state in TERMINAL:
                self._complete -= count
            if lock is None:
                self.archiving_count += count
                self._slots.assign(first, move.last, move.before)
                self._archiving.push(first)
                continue
            if lock.deadline_ms > now_ms:
                self._locks.put_back(lock, count)
            else:
                lock = Lock(lock.member_id, first, move.last, now_ms + RETRY_MS)
                self._locks.add(lock)
            self._slots.assign(first, move.last, move.before._replace(lock=lock))

    # Looking ahead.

    def look_offset(self) -> int | None:
        """From where on records have to be looked at before any is acquired; None if enough are known."""
        settings, looked = self.settings, self.upcoming.looked
        if not settings.is_ordered:
            return None
        # A quarter at a time: to look for one record costs as much as to look for hundreds.
        if looked >= self.end_offset and (
            self.upcoming.ahead_count > 3 * settings.look_ahead_records // 4
            or self.upcoming.delays.count >= settings.delay_max_records
        ):
            return None
        return looked

    @property
    def may_append(self) -> bool:
        """Whether records after the end offset may be acquired now."""
        settings = self.settings
        if settings.is_ordered or not self.has_room:
            return False
        has_delays = settings.delay_enable and self.upcoming.delays.count >= settings.delay_max_records
        return not has_delays or self.end_offset < self.upcoming.looked

    def learn(
        self, first: int, last: int, batches: Sequence[tuple[int, int]], facts: Sequence[Fact], wall_ms: int
    ) -> None:
        """Everything from `first` to `last` was looked at; see `look_ahead.learn`."""
        if facts or self.settings.is_ordered:
            learn(self, first, last, batches, facts, wall_ms)
            self._advance()
        elif first <= self.end_offset:
            self.upcoming.looked = max(self.upcoming.looked, last + 1)

    def append(self, last: int, slot: Slot) -> None:
        """Continue the window with records that nobody has acquired, or that hold nothing for members."""
        first = self.end_offset
        self._slots.append(last, slot)
        if slot.state in TERMINAL:
            self._complete += last - first + 1
        else:
            self._unfinished += last - first + 1
            if slot.state is RecordState.AVAILABLE:
                self.upcoming.entered(first, last, slot)
            elif slot.state is RecordState.ARCHIVING:
                self.archiving_count += last - first + 1
                self._archiving.push(first)

    def free_due(self, wall_ms: int, ranges_max: int = maxsize) -> None:
        """Delayed records that are due may be acquired. With `ranges_max` some may be left."""
        self.upcoming.free_due(wall_ms, ranges_max)

    def configure(self, settings: ShareSettings) -> None:
        before, self.settings = self.settings, settings
        self.upcoming.delays.ignores_headers = not settings.delay_enable
        asks_for_more = (settings.key_order_enable and not before.key_order_enable) or (
            settings.priority_enable and not before.priority_enable
        )
        if asks_for_more:
            self.upcoming.look_again()

    # Dead letters.

    def letters_due(self, records_max: int) -> list[tuple[int, int, Slot]]:
        """The first ranges that still need dead letters, in order, covering at most `records_max` records."""
        due: list[tuple[int, int, Slot]] = []
        left, end = records_max, self.start_offset - 1
        while left > 0 and (offset := self._archiving.pop()) is not None:
            # The range may have been joined with the one before, which then stands for it, too.
            if offset > end and is_archiving(self._slots.at(offset)):
                _, end, slot = next(self._slots.ranges(offset, self.end_offset - 1))
                due.append((offset, min(end, offset + left - 1), slot))
                left -= end - offset + 1
        for first, _, _ in due:
            self._archiving.push(first)
        return due

    def archive(self, ranges: Sequence[tuple[int, int]]) -> Change:
        """Archive these records: their letters are written, or there are none to write."""
        return self._begin(
            [
                Move(begin, end, slot, RecordState.ARCHIVED, slot.deliveries, Cause.LETTER)
                for first, last in ranges
                for begin, end, slot in self._slots.ranges(first, last)
                if is_archiving(slot)
            ]
        )

    # The log.

    def advance_start(self, log_start: int) -> None:
        """The log begins at a later offset: earlier records are gone, even those that members hold."""
        if log_start <= self.start_offset:
            return
        passed = list(self._slots.ranges(self.start_offset, log_start - 1))
        for first, last, slot in passed:
            count = last - first + 1
            if slot.state in TERMINAL:
                self._complete -= count
            if slot.state not in TERMINAL or slot.change is not None:
                self._unfinished -= count
            if slot.state is RecordState.ARCHIVING:
                self.archiving_count -= count
                self.lost_letters += count
            elif slot.change is not None:
                self._in_changes -= count
            if slot.lock is not None:
                self._locks.remove(slot.lock, count)
        self._slots.drop_before(log_start)
        self.upcoming.passed(log_start, passed)
        self.upcoming.push_at(log_start)
        self._note_archiving(log_start)
        self._advance()

    # Internals

    def _move(
        self, first: int, last: int, slot: Slot, kind: AcknowledgeType, cause: Cause, given: Failure | None = None
    ) -> Move:
        state, deliveries = self._verdict(kind, slot.deliveries)
        failure = failure_of(kind, given, self.archiving_count) if state is RecordState.ARCHIVING else None
        return Move(first, last, slot, state, deliveries, cause, failure=failure)

    def _verdict(self, kind: AcknowledgeType, deliveries: int) -> tuple[RecordState, int]:
        given_up = RecordState.ARCHIVING if self.settings.has_dead_letters else RecordState.ARCHIVED
        match kind:
            case AcknowledgeType.ACCEPT:
                return RecordState.ACKNOWLEDGED, deliveries
            case AcknowledgeType.RELEASE:
                limit = self.settings.delivery_count_limit
                return (RecordState.AVAILABLE if deliveries < limit else given_up), deliveries
            case AcknowledgeType.REJECT:
                return given_up, deliveries
            case _:
                return RecordState.ARCHIVED, deliveries

    def _release(self, locks: list[Lock], ranges_max: int, cause: Cause, *, were_delivered: bool) -> Change:
        """Release what these locks hold, as far as it is in so many ranges."""
        moves = (
            self._move(first, last, slot, AcknowledgeType.RELEASE, cause)
            if were_delivered
            else Move(first, last, slot, RecordState.AVAILABLE, slot.deliveries - 1, cause)
            for lock in locks
            for first, last, slot in self._slots.ranges(lock.first, lock.last)
            if slot.lock is lock
        )
        return self._begin(sorted(islice(moves, ranges_max)))

    def _begin(self, moves: list[Move]) -> Change:
        change = Change(self.start_offset, moves)
        for move in moves:
            lock, count = move.before.lock, move.last - move.first + 1
            if lock is None:
                self.archiving_count -= count
            else:
                self._locks.remove(lock, count)
            if move.state is RecordState.ARCHIVING:
                self.archiving_count += count
            else:
                self._in_changes += count
            if move.state in TERMINAL:
                self._complete += count
            slot = Slot(move.state, move.deliveries, None, change, failure=move.failure)
            self._slots.assign(move.first, move.last, slot)
            if lock is None:
                self._note_archiving(move.last + 1)
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
            if is_available(slot):
                if slot.waits:
                    self.upcoming.waiting -= end - begin + 1
                self._slots.assign(begin, end, slot_of(RecordState.ARCHIVED, 0))
                self.upcoming.push_at(end + 1)
                self._unfinished -= end - begin + 1
                self._complete += end - begin + 1
                self.upcoming.finished(begin, end)
        if last >= self.end_offset:
            self.append(last, slot_of(RecordState.ARCHIVED, 0))

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

    def _note_archiving(self, offset: int) -> None:
        """Ranges before this offset changed: if one begins here now that is ARCHIVING, remember it."""
        if self.start_offset <= offset < self.end_offset and is_archiving(self._slots.at(offset)):
            self._archiving.push(offset)
