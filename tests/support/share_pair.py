"""A share window and its model side by side: whatever is done is done to both, and both must then look the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.shares.acquisition import AcquireMode
from millpond.broker.shares.delays import OFFSET_BITS
from millpond.broker.shares.next_records import Fact
from millpond.broker.shares.slots import Change
from millpond.broker.shares.verdicts import Acknowledgement
from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares.state_batches import Failure, RecordState, StateBatch
from support.share_model import Fact as ModelFact
from support.share_model import Invalid, ModelChange, ShareModel, Wants

LOCK_MS = 100
WALL_MS = 1_000
"""What the wall clock shows at the beginning. Times in facts count from there."""
CODES = {"request": ErrorCode.INVALID_REQUEST, "state": ErrorCode.INVALID_RECORD_STATE}


class Pair:
    def __init__(
        self,
        batches: Sequence[tuple[int, int]],
        log_end: int,
        *,
        limit: int = 3,
        in_flight_max: int = 4,
        start: int = 0,
        wants: Wants | None = None,
        facts: dict[int, ModelFact] | None = None,
        has_letters: bool = False,
    ) -> None:
        self.has_letters = has_letters
        self.wants = wants or Wants()
        self.facts = {
            offset: (key, priority, due_ms if due_ms < 0 else WALL_MS + due_ms)
            for offset, (key, priority, due_ms) in (facts or {}).items()
        }
        self.batches, self.log_end, self.log_start = batches, log_end, start
        self.now_ms, self.wall_ms = 0, WALL_MS
        self.limit, self.in_flight_max = limit, in_flight_max
        self.window = ShareWindow(self.settings, start)
        self.model = ShareModel(limit, in_flight_max, LOCK_MS, start, self.wants, has_letters=has_letters)
        self.changes: list[tuple[Change, ModelChange]] = []
        self.written: dict[int, tuple[int, int, int]] = {}
        """What the coordinator has, by offset."""
        self.written_failures: dict[int, tuple[str, str]] = {}
        self.written_start = start

    @property
    def settings(self) -> ShareSettings:
        wants = self.wants
        return ShareSettings(
            LOCK_MS,
            self.limit,
            self.in_flight_max,
            delay_enable=wants.delay,
            delay_max_records=wants.delay_max,
            key_order_enable=wants.key_order,
            priority_enable=wants.priority,
            look_ahead_records=wants.look_ahead,
            has_dead_letters=self.has_letters,
        )

    # What is done.

    def fetch(
        self, member: str, max_records: int, mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED, *, read: int = 1_000
    ) -> dict[int, int]:
        """Read up to `read` offsets of the log, from where the window wants them, and acquire what there is."""
        while True:
            offset = self.window.look_offset()
            assert offset == self.model.look_offset()
            if offset is None or offset >= self.log_end:
                break
            self.look(offset, min(offset + read, self.log_end) - 1)
        first = self.window.next_fetch_offset()
        last = min(first + read, self.log_end) - 1
        if self.wants.delay and not self.wants.is_ordered:
            self.look(first, last)
        visible = self.visible(first, last)
        acquired = self.window.acquire(
            member,
            first,
            last,
            self.now_ms,
            max_records=max_records,
            batch_size=2,
            mode=mode,
            batches=visible,
        )
        got = {offset: each.deliveries for each in acquired for offset in range(each.first, each.last + 1)}
        assert len(got) == sum(each.last - each.first + 1 for each in acquired), "an offset was given twice"
        expected = self.model.acquire(
            member,
            first,
            last,
            self.now_ms,
            max_records=max_records,
            has_record_limit=mode is AcquireMode.RECORD_LIMIT,
            batches=visible,
        )
        assert got == expected, f"{got} {expected}"
        return got

    def visible(self, first: int, last: int) -> list[tuple[int, int]]:
        return [each for each in self.batches if each[1] >= first and each[0] <= last]

    def look(self, first: int, last: int) -> None:
        """Look at what the log has between these offsets."""
        facts = {
            offset: fact
            for offset, fact in sorted(self.facts.items())
            if first <= offset <= last and any(base <= offset <= end for base, end in self.batches)
        }
        self.window.learn(
            first,
            last,
            self.visible(first, last),
            [Fact(offset, *fact) for offset, fact in facts.items()],
            self.wall_ms,
        )
        self.model.learn(first, last, self.visible(first, last), facts, self.wall_ms)

    def acknowledge(self, member: str, *batches: tuple[Any, ...], delay_ms: int = 0) -> ErrorCode:
        expected = self.model.acknowledge(member, batches, self.now_ms, delay_ms=delay_ms, wall_ms=self.wall_ms)
        given = [Acknowledgement(*each[:3], delay_ms, *(Failure(*error) for error in each[3:])) for each in batches]
        if isinstance(expected, Invalid):
            with pytest.raises(Refused) as refusal:
                self.window.acknowledge(member, given, self.now_ms, self.wall_ms)
            assert refusal.value.code == CODES[str(expected)]
            return refusal.value.code
        self._begin(self.window.acknowledge(member, given, self.now_ms, self.wall_ms), expected)
        return ErrorCode.NONE

    def turn_clock(self, ms: int) -> None:
        """The wall clock moves, forward or back."""
        self.wall_ms += ms
        self.window.free_due(self.wall_ms)
        self.model.free_due(self.wall_ms)

    def release_member(self, member: str, *, were_delivered: bool = False) -> None:
        self._begin(
            self.window.release_member(member, were_delivered=were_delivered),
            self.model.release_member(member, were_delivered=were_delivered),
        )

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self._begin(self.window.on_timer(self.now_ms), self.model.on_timer(self.now_ms))

    def write_letters(self, most: int) -> None:
        """Write the first letters, and begin to archive their records."""
        due = self.window.letters_due(most)
        failures = {
            offset: (slot.failure, slot.deliveries) for first, last, slot in due for offset in range(first, last + 1)
        }
        records = self.model.records
        assert list(failures) == self.model.letters_due(most)
        assert failures == {each: (records[each].failure, records[each].deliveries) for each in failures}
        self._begin(self.window.archive([each[:2] for each in due]), self.model.archive(failures))

    def commit(self, index: int = 0) -> None:
        change, expected = self.changes.pop(index)
        self.window.commit(change)
        self.model.commit(expected)
        self.written |= expected.states
        self.written_failures |= expected.failures
        self.written_start = max(self.written_start, change.start_offset)

    def roll_back(self, index: int = 0) -> None:
        change, expected = self.changes.pop(index)
        self.window.roll_back(change, self.now_ms)
        self.model.roll_back(expected, self.now_ms)

    def retain_from(self, log_start: int) -> None:
        self.log_start = log_start
        self.window.advance_start(log_start)
        self.model.advance_start(log_start)

    def change_leader(self) -> None:
        """Another node reads what was written. What was being written is lost."""
        start = self.written_start
        written = {offset: state for offset, state in self.written.items() if offset >= start}
        batches = [
            StateBatch(offset, offset, RecordState(state), deliveries, due_ms, self._failure_of(offset, state))
            for offset, (state, deliveries, due_ms) in sorted(written.items())
        ]
        self.window = ShareWindow.load(self.settings, start, batches)
        self.model = self.model.durable(written, self.written_failures, start)
        self.changes = []
        self.retain_from(self.log_start)
        self.turn_clock(0)

    def _failure_of(self, offset: int, state: int) -> Failure | None:
        return Failure(*self.written_failures[offset]) if state == RecordState.ARCHIVING else None

    def held(self, member: str) -> list[int]:
        return [offset for offset, each in self.model.records.items() if each.is_held and each.member == member]

    # What it looks like.

    def check(self) -> None:
        window, model = self.window, self.model
        assert (window.start_offset, window.end_offset) == (model.start, model.end), (
            f"{window.start_offset, window.end_offset} {model.start, model.end}"
        )
        assert window.next_fetch_offset() == model.next_fetch()
        assert window.next_deadline_ms() == model.next_deadline_ms()
        assert (window.in_flight, window.held_count) == (model.in_flight, model.held)
        assert window.delivery_complete_count == model.complete
        assert window.lost_letters == model.lost_letters
        counts = window.counts()
        assert {name: getattr(counts, name) for name in model.counts()} == model.counts()
        assert (window.upcoming.looked, window.look_offset()) == (model.looked, model.look_offset())
        is_full = not model.has_room and model.next_fetch() == model.end
        assert window.is_full == is_full
        shown: dict[int, tuple[object, ...]] = {}
        for first, last, slot in window.slots(window.start_offset, window.end_offset):
            state, deliveries, lock, change, waits, _ = slot
            for offset in range(first, last + 1):
                holder = (lock.member_id, lock.deadline_ms) if lock else None
                finished = state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED) and change is None
                why = waits.name.lower().replace("_", " ")
                shown[offset] = (int(state), 0 if finished else deliveries, holder, change is not None, why)
        assert shown == {offset: _shown(model, offset) for offset in model.records}

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that the future depends on, with times relative to now."""
        changes = {id(change): number for number, (change, _) in enumerate(self.changes)}
        locks: dict[int, int] = {}
        window = self.window
        return (
            window.start_offset,
            window.end_offset,
            tuple(
                (
                    first,
                    last,
                    slot.state,
                    slot.deliveries,
                    locks.setdefault(id(slot.lock), len(locks)) if slot.lock else None,
                    (slot.lock.member_id, slot.lock.deadline_ms - self.now_ms) if slot.lock else None,
                    changes.get(id(slot.change)),
                    slot.waits,
                    slot.failure,
                )
                for first, last, slot in window.slots(window.start_offset, window.end_offset)
            ),
            window.upcoming.looked,
            self._relative(window),
            tuple((change.start_offset, tuple(map(_move, change.moves))) for change, _ in self.changes),
            tuple(
                (offset, state, deliveries, due_ms if due_ms < 0 else due_ms - self.wall_ms)
                for offset, (state, deliveries, due_ms) in sorted(self.written.items())
                if offset >= self.written_start
            ),
            self.written_start,
            self.log_start,
        )

    def _relative(self, window: ShareWindow) -> tuple[object, ...]:
        """What waits, with times relative to now."""
        upcoming, now_ms = window.upcoming, self.wall_ms
        heaps = (upcoming.delays._by_header, upcoming.delays._by_member)
        lanes = [
            sorted((priority, sorted(heap)) for priority, (heap, _) in ready._lanes.items())
            for ready in (upcoming._tried, upcoming._known)
        ]
        return (
            repr(lanes),
            repr([sorted(each - (now_ms << OFFSET_BITS) for each in heap) for heap in heaps]),
            repr(sorted((offset, due_ms - now_ms) for offset, due_ms in upcoming._due_behind.items())),
            repr(sorted(upcoming.keys._keys.items())),
            upcoming._passed_over,
            # A record in the log falls due, too.
            max(now_ms, 0) if any(due_ms >= 0 for _, _, due_ms in self.facts.values()) else 0,
        )

    def _begin(self, change: Change, expected: ModelChange) -> None:
        written = {
            offset: (int(state), deliveries, due_ms)
            for first, last, state, deliveries, due_ms, _ in change.batches
            for offset in range(first, last + 1)
        }
        assert written == expected.states
        failures = {
            offset: each.failure
            for each in change.batches
            if each.failure is not None
            for offset in range(each.first, each.last + 1)
        }
        assert failures == expected.failures
        assert (change.start_offset, change.delivery_complete_count) == (expected.start, expected.complete)
        assert change.batches == sorted(change.batches)
        assert change.is_pending == bool(expected.states)
        if change.is_pending:
            self.changes.append((change, expected))


def _shown(model: ShareModel, offset: int) -> tuple[object, ...]:
    record = model.records[offset]
    if record.will_be is not None:
        return (*record.will_be[:2], None, True, "no")
    holder = (record.member, record.deadline_ms) if record.is_held else None
    return record.state, 0 if record.is_finished else record.deliveries, holder, False, model.waits(offset)


def _move(move: object) -> tuple[object, ...]:
    first, last, before, state, deliveries, _, due_ms, failure = move  # type: ignore[misc]
    deadline_ms = before.lock.deadline_ms if before.lock else None
    return first, last, before.deliveries, deadline_ms, state, deliveries, due_ms, failure
