"""A share window and its model side by side: whatever is done is done to both, and both must then look the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.shares.acquisition import AcquireMode
from millpond.broker.shares.slots import Change
from millpond.broker.shares.verdicts import Acknowledgement
from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares.state_batches import Failure, RecordState, StateBatch
from support.share_model import Invalid, ModelChange, Record, ShareModel

LOCK_MS = 100
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
        has_letters: bool = False,
    ) -> None:
        self.has_letters = has_letters
        self.batches, self.log_end, self.log_start = batches, log_end, start
        self.now_ms = 0
        self.limit, self.in_flight_max = limit, in_flight_max
        self.window = ShareWindow(self.settings, start)
        self.model = ShareModel(limit, in_flight_max, LOCK_MS, start, has_letters=has_letters)
        self.changes: list[tuple[Change, ModelChange]] = []
        self.written: dict[int, tuple[int, int]] = {}
        """What the coordinator has, by offset."""
        self.written_failures: dict[int, tuple[str, str]] = {}
        self.written_start = start

    @property
    def settings(self) -> ShareSettings:
        return ShareSettings(LOCK_MS, self.limit, self.in_flight_max, self.has_letters)

    # What is done.

    def fetch(
        self, member: str, max_records: int, mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED, *, read: int = 1_000
    ) -> dict[int, int]:
        """Read up to `read` offsets of the log, from where the window wants them, and acquire what there is."""
        first = self.window.next_fetch_offset()
        last = min(first + read, self.log_end) - 1
        visible = [each for each in self.batches if each[1] >= first and each[0] <= last]
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
        assert got == expected
        return got

    def acknowledge(self, member: str, *batches: tuple[Any, ...]) -> ErrorCode:
        expected = self.model.acknowledge(member, batches, self.now_ms)
        given = [Acknowledgement(*each[:3], *(Failure(*error) for error in each[3:])) for each in batches]
        if isinstance(expected, Invalid):
            with pytest.raises(Refused) as refusal:
                self.window.acknowledge(member, given, self.now_ms)
            assert refusal.value.code == CODES[str(expected)]
            return refusal.value.code
        self._begin(self.window.acknowledge(member, given, self.now_ms), expected)
        return ErrorCode.NONE

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
            StateBatch(offset, offset, RecordState(state), deliveries, self._failure_of(offset, state))
            for offset, (state, deliveries) in sorted(written.items())
        ]
        self.window = ShareWindow.load(self.settings, start, batches)
        self.model = self.model.durable(written, self.written_failures, start)
        self.changes = []
        self.retain_from(self.log_start)

    def _failure_of(self, offset: int, state: int) -> Failure | None:
        return Failure(*self.written_failures[offset]) if state == RecordState.ARCHIVING else None

    def held(self, member: str) -> list[int]:
        return [offset for offset, each in self.model.records.items() if each.is_held and each.member == member]

    # What it looks like.

    def check(self) -> None:
        window, model = self.window, self.model
        assert (window.start_offset, window.end_offset) == (model.start, model.end)
        assert window.next_fetch_offset() == model.next_fetch()
        assert window.next_deadline_ms() == model.next_deadline_ms()
        assert (window.in_flight, window.held_count) == (model.in_flight, model.held)
        assert window.delivery_complete_count == model.complete
        assert window.lost_letters == model.lost_letters
        counts = window.counts()
        assert {name: getattr(counts, name) for name in model.counts()} == model.counts()
        is_full = model.in_flight >= model.in_flight_max and model.next_fetch() == model.end
        assert window.is_full == is_full
        shown: dict[int, tuple[object, ...]] = {}
        for first, last, (state, deliveries, lock, change, _) in window.slots(window.start_offset, window.end_offset):
            for offset in range(first, last + 1):
                holder = (lock.member_id, lock.deadline_ms) if lock else None
                finished = state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED) and change is None
                shown[offset] = (int(state), 0 if finished else deliveries, holder, change is not None)
        assert shown == {offset: _shown(record) for offset, record in model.records.items()}

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
                    slot.failure,
                )
                for first, last, slot in window.slots(window.start_offset, window.end_offset)
            ),
            tuple(sorted(window._available)),
            tuple((change.start_offset, tuple(map(_move, change.moves))) for change, _ in self.changes),
            tuple(sorted(each for each in self.written.items() if each[0] >= self.written_start)),
            self.written_start,
            self.log_start,
        )

    def _begin(self, change: Change, expected: ModelChange) -> None:
        written = {
            offset: (int(state), deliveries)
            for first, last, state, deliveries, _ in change.batches
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


def _shown(record: Record) -> tuple[object, ...]:
    if record.will_be is not None:
        return (*record.will_be, None, True)
    holder = (record.member, record.deadline_ms) if record.is_held else None
    return record.state, 0 if record.is_finished else record.deliveries, holder, False


def _move(move: object) -> tuple[object, ...]:
    first, last, before, state, deliveries, _, failure = move  # type: ignore[misc]
    deadline_ms = before.lock.deadline_ms if before.lock else None
    return first, last, before.deliveries, deadline_ms, state, deliveries, failure
