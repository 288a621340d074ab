"""Bugs that share windows and their coordinator might have, put in on purpose: each must break a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millpond.broker.shares import next_records
from millpond.broker.shares import window as window_module
from millpond.broker.shares.acquisition import Acquisition
from millpond.broker.shares.delays import Delays
from millpond.broker.shares.key_order import KeyOrder
from millpond.broker.shares.locks import Lock, Locks
from millpond.broker.shares.next_records import Fact, Upcoming
from millpond.broker.shares.slots import Cause, Change, Move, Slot, slot_of
from millpond.broker.shares.verdicts import AcknowledgeType
from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares import shard as shard_module
from millpond.coordinators.shares.range_map import RangeMap
from millpond.coordinators.shares.shard import ShareShard
from millpond.coordinators.shares.state import ShareState
from millpond.coordinators.shares.state_batches import RecordState, StateBatch
from millpond.sim.machines.run import NOT_HEALED
from millpond.sim.machines.shares import checkers
from millpond.sim.machines.shares.scenario import run_seed

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch


def finish_before_it_is_written(patch: Patch) -> None:
    """The start offset passes records whose verdict may yet fail."""
    real = ShareWindow._begin

    def begin(self: ShareWindow, moves: Any) -> Change:
        change = real(self, moves)
        for move in change.moves:
            self._slots.assign(move.first, move.last, slot_of(move.state, move.deliveries, move.failure))
            self.upcoming.push_at(move.first)
        return change

    patch.setattr(ShareWindow, "_begin", begin)


def release_when_a_write_fails(patch: Patch) -> None:
    """A record whose acceptance was refused becomes available although its member may still accept it."""
    real = ShareWindow.roll_back

    def roll_back(self: ShareWindow, change: Change, now_ms: int) -> None:
        moves = list(change.moves) if change.is_pending else []
        real(self, change, now_ms)
        for move in moves:
            first = max(move.first, self.start_offset)
            if first <= move.last:
                for begin, end, slot in list(self._slots.ranges(first, move.last)):
                    if slot.lock is not None:
                        self._locks.remove(slot.lock, end - begin + 1)
                    self._slots.assign(begin, end, slot_of(RecordState.AVAILABLE, slot.deliveries))
                    self.upcoming.push_at(begin)

    patch.setattr(ShareWindow, "roll_back", roll_back)


def believe_anybody(patch: Patch) -> None:
    """Whoever acknowledges a record is taken for its holder."""
    real = ShareWindow.acknowledge

    def acknowledge(self: ShareWindow, member_id: str, acknowledgements: Any, *times: int) -> Change:
        for each in acknowledgements:
            for _, _, slot in self._slots.ranges(each.first, each.last):
                if slot.lock is not None:
                    member_id = slot.lock.member_id
        return real(self, member_id, acknowledgements, *times)

    patch.setattr(ShareWindow, "acknowledge", acknowledge)


def forget_the_count(patch: Patch) -> None:
    """A released record begins again at its first delivery."""
    real = ShareWindow.commit

    def commit(self: ShareWindow, change: Change) -> None:
        change.moves = [
            move._replace(deliveries=0) if move.state is RecordState.AVAILABLE else move for move in change.moves
        ]
        real(self, change)

    patch.setattr(ShareWindow, "commit", commit)


def lose_the_count_on_load(patch: Patch) -> None:
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        return real(settings, start_offset, [each._replace(deliveries=0) for each in batches])

    patch.setattr(ShareWindow, "load", load)


def never_give_up(patch: Patch) -> None:
    """The limit of deliveries is not looked at."""
    real = ShareWindow._verdict

    def verdict(self: ShareWindow, kind: AcknowledgeType, deliveries: int) -> Any:
        state, _ = real(self, kind, deliveries)
        return (RecordState.AVAILABLE if kind is AcknowledgeType.RELEASE else state), deliveries

    patch.setattr(ShareWindow, "_verdict", verdict)


def give_up_one_too_early(patch: Patch) -> None:
    real = ShareWindow._verdict
    patch.setattr(
        ShareWindow,
        "_verdict",
        lambda self, kind, deliveries: (real(self, kind, deliveries + 1)[0], deliveries),
    )


def take_holes_as_finished(patch: Patch) -> None:
    """What a leader held when it failed was never written: a new one takes the hole for finished."""
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        end, filled = start_offset, []
        for each in batches:
            if each.first > end:
                filled.append(StateBatch(end, each.first - 1, RecordState.ACKNOWLEDGED, 0))
            filled.append(each)
            end = each.last + 1
        return real(settings, start_offset, filled)

    patch.setattr(ShareWindow, "load", load)


def begin_after_the_first_batch(patch: Patch) -> None:
    """A new leader begins after the last record that was written."""
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        end = batches[-1].last + 1 if batches else start_offset
        return real(settings, end, [])

    patch.setattr(ShareWindow, "load", load)


def forget_what_became_available_behind(patch: Patch) -> None:
    """The rest of an available range, of which a part was acquired, is not found again."""
    patch.setattr(Upcoming, "push_at", lambda *_: None)


def never_expire(patch: Patch) -> None:
    patch.setattr(Locks, "due", lambda *_: [])
    patch.setattr(Locks, "next_deadline_ms", lambda _: None)


def renew_without_time(patch: Patch) -> None:
    """A renewal is confirmed, and the lock ends as before."""
    patch.setattr(ShareWindow, "_renew", lambda *_: None)


def expire_by_the_range_and_not_by_the_lock(patch: Patch) -> None:
    """What a later lock holds is released with the earlier one that covered the same offsets."""

    def release(
        self: ShareWindow, locks: list[Lock], ranges_max: int, cause: Cause, *, were_delivered: bool
    ) -> Change:
        found = {
            (first, last): slot
            for lock in locks
            for first, last, slot in self._slots.ranges(lock.first, lock.last)
            if slot.lock is not None
        }
        moves = [
            Move(first, last, slot, *self._verdict(AcknowledgeType.RELEASE, slot.deliveries), cause)
            for (first, last), slot in sorted(found.items())
        ]
        return self._begin(moves)

    patch.setattr(ShareWindow, "_release", release)


def ignore_the_limit_in_flight(patch: Patch) -> None:
    real = Acquisition._take_new

    def take_new(self: Acquisition, last: int, is_split_here: bool) -> None:
        before, self._settings = self._settings, ShareSettings(in_flight_max=1 << 30)
        real(self, last, is_split_here)
        self._settings = before

    patch.setattr(Acquisition, "_take_new", take_new)


def acquire_what_is_being_released(patch: Patch) -> None:
    """A record is available as soon as its release is decided, whether or not its count is written."""
    for module in (window_module, next_records):
        patch.setattr(module, "is_available", lambda slot: slot.state is RecordState.AVAILABLE and slot.waits <= 1)
    real = ShareWindow._begin

    def begin(self: ShareWindow, moves: Any) -> Change:
        change = real(self, moves)
        for move in change.moves:
            self.upcoming.push_at(move.first)
        return change

    patch.setattr(ShareWindow, "_begin", begin)


def deliver_gaps(patch: Patch) -> None:
    """Offsets between batches are acquired like records."""
    real = ShareWindow.acquire

    def acquire(self: ShareWindow, member_id: str, first: int, last: int, now_ms: int, **named: Any) -> Any:
        named["batches"] = [(first, last)] if named["batches"] else []
        return real(self, member_id, first, last, now_ms, **named)

    patch.setattr(ShareWindow, "acquire", acquire)


def pass_what_is_held(patch: Patch) -> None:
    """The start offset moves past records that members hold, if one after them is finished."""
    real = ShareWindow._advance

    def advance(self: ShareWindow) -> None:
        real(self)
        ranges = list(self._slots.ranges(self.start_offset, self.end_offset))
        if len(ranges) > 1 and ranges[0][2].lock is not None and _is_finished(ranges[1][2]):
            self.advance_start(ranges[1][0])

    patch.setattr(ShareWindow, "_advance", advance)


# Delay, order per key, priority


def fall_due_early(patch: Patch) -> None:
    real = Delays.due
    patch.setattr(Delays, "due", lambda self, wall_ms, *rest: real(self, wall_ms + 100, *rest))


def never_fall_due(patch: Patch) -> None:
    patch.setattr(Delays, "next_due_ms", lambda *_: -1)


def forget_the_time_on_load(patch: Patch) -> None:
    """A new leader takes a record that was released for later as available."""
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        return real(settings, start_offset, [each._replace(available_at_ms=-1) for each in batches])

    patch.setattr(ShareWindow, "load", load)


def forget_the_time_behind_another_record(patch: Patch) -> None:
    """A delayed record that waited for its key goes as soon as its key lets it."""
    real = Upcoming.waits_as

    def waits_as(self: Upcoming, fact: Fact, wall_ms: int) -> Any:
        waits = real(self, fact, wall_ms)
        self._due_behind.clear()
        return waits

    patch.setattr(Upcoming, "waits_as", waits_as)


def count_delayed_records_as_in_flight(patch: Patch) -> None:
    """Nothing is delivered while as many records are delayed as may be in flight."""
    patch.setattr(ShareWindow, "has_room", property(lambda self: self._unfinished < self.settings.in_flight_max))


def let_the_next_of_a_key_go_when_one_is_released(patch: Patch) -> None:
    real = Upcoming.release

    def release(self: Upcoming, first: int, last: int, deliveries: int, due_ms: int) -> None:
        self.finished(first, last)
        real(self, first, last, deliveries, due_ms)

    patch.setattr(Upcoming, "release", release)


def let_all_of_a_key_go(patch: Patch) -> None:
    patch.setattr(KeyOrder, "may_go", lambda *_: True)


def deliver_before_looking(patch: Patch) -> None:
    """A new leader takes what its predecessor knew as looked at."""
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        window = real(settings, start_offset, batches)
        window.upcoming.looked = window.end_offset
        return window

    patch.setattr(ShareWindow, "load", load)


def always_prefer_the_highest(patch: Patch) -> None:
    """Records with a low priority may wait forever."""
    patch.setattr(next_records, "PASSED_OVER_MAX", 1 << 30)


# Dead letters


def give_up_without_a_letter(patch: Patch) -> None:
    """What is rejected or exhausted is archived at once."""
    real = ShareWindow._verdict

    def verdict(self: ShareWindow, kind: AcknowledgeType, deliveries: int) -> Any:
        state, _ = real(self, kind, deliveries)
        return (RecordState.ARCHIVED if state is RecordState.ARCHIVING else state), deliveries

    patch.setattr(ShareWindow, "_verdict", verdict)


def archive_before_the_letter_is_written(patch: Patch) -> None:
    real = ShareWindow.commit

    def commit(self: ShareWindow, change: Change) -> None:
        real(self, change)
        for move in change.moves:
            if move.state is RecordState.ARCHIVING and move.last >= self.start_offset:
                real(self, self.archive([(move.first, move.last)]))

    patch.setattr(ShareWindow, "commit", commit)


def take_what_is_given_up_as_finished(patch: Patch) -> None:
    """A new leader forgets the letters that the one before had to write."""
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        archived = [
            each._replace(state=RecordState.ARCHIVED) if each.state is RecordState.ARCHIVING else each
            for each in batches
        ]
        return real(settings, start_offset, archived)

    patch.setattr(ShareWindow, "load", load)


def deliver_what_is_given_up(patch: Patch) -> None:
    """A new leader delivers records again whose letters are not written."""
    real = ShareWindow.load

    def load(settings: ShareSettings, start_offset: int, batches: Sequence[StateBatch]) -> ShareWindow:
        available = [
            each._replace(state=RecordState.AVAILABLE) if each.state is RecordState.ARCHIVING else each
            for each in batches
        ]
        return real(settings, start_offset, available)

    patch.setattr(ShareWindow, "load", load)


def forget_letters_behind(patch: Patch) -> None:
    """The rest of a range, of which the first letters were written, is not found again."""
    patch.setattr(ShareWindow, "_note_archiving", lambda *_: None)


# The coordinator


def let_the_start_go_back(patch: Patch) -> None:
    """The start offset of the last write counts, although its leader sent it before it knew of the one before."""
    real = ShareState.merge

    def merge(self: ShareState, leader_epoch: int, start_offset: int, batches: Any) -> None:
        real(self, leader_epoch, start_offset, batches)
        if 0 <= start_offset < self.start_offset:
            kept = self.batches()
            self._ranges = RangeMap(start_offset)
            self.start_offset = start_offset
            self._apply(kept)

    patch.setattr(ShareState, "merge", merge)
    patch.setattr(shard_module, "max", lambda *values: max(min(values), 0), raising=False)


def believe_an_earlier_leader(patch: Patch) -> None:
    """A late write of the leader before overrides what the present one wrote."""
    real = ShareShard._decide_write

    def decide(self: ShareShard, key: Any, given: Any) -> Any:
        given.leader_epoch = max(given.leader_epoch, self.states[key].leader_epoch)
        return real(self, key, given)

    patch.setattr(ShareShard, "_decide_write", decide)


def begin_again_when_asked_twice(patch: Patch) -> None:
    """A repeated initialisation forgets what was finished since."""
    real = ShareShard._decide_initialise

    def decide(self: ShareShard, key: Any, state_epoch: int, start_offset: int) -> Any:
        if key in self.states:
            self.states[key].state_epoch -= 1
        return real(self, key, state_epoch, start_offset)

    patch.setattr(ShareShard, "_decide_initialise", decide)


def forget_the_write_that_makes_a_snapshot(patch: Patch) -> None:
    real = ShareShard._snapshot

    def snapshot(self: ShareShard, key: Any, state: ShareState, leader_epoch: int, start: int, _: Any) -> Any:
        return real(self, key, state, leader_epoch, start, ())

    patch.setattr(ShareShard, "_snapshot", snapshot)


def keep_the_first_of_two_batches(patch: Patch) -> None:
    """What was written first about an offset counts."""
    real = ShareState._apply

    def apply(self: ShareState, batches: Any) -> None:
        known = {offset for each in self.batches() for offset in range(each.first, each.last + 1)}
        real(
            self,
            [
                StateBatch(offset, offset, each.state, each.deliveries)
                for each in batches
                for offset in range(each.first, each.last + 1)
                if offset not in known
            ],
        )

    patch.setattr(ShareState, "_apply", apply)


def _is_finished(slot: Slot) -> bool:
    return slot.change is None and slot.state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


TWICE = (checkers.HELD_BY_TWO, checkers.FINISHED_AGAIN, checkers.COUNT_WRONG)
LOSES = (checkers.LOST, checkers.GIVEN_UP_EARLY)
STUCK = (NOT_HEALED, checkers.LOCK_OUTLIVED)

MUTANTS: dict[Callable[[Patch], None], tuple[tuple[str, ...], int]] = {
    finish_before_it_is_written: ((*TWICE, *LOSES, checkers.HOLDER_REFUSED), 40),
    release_when_a_write_fails: ((*TWICE, checkers.HOLDER_REFUSED), 40),
    believe_anybody: ((checkers.STRANGER_BELIEVED,), 20),
    forget_the_count: ((checkers.COUNT_WRONG,), 20),
    lose_the_count_on_load: ((checkers.COUNT_WRONG,), 40),
    never_give_up: ((checkers.TRIED_TOO_OFTEN,), 40),
    give_up_one_too_early: ((checkers.GIVEN_UP_EARLY,), 40),
    take_holes_as_finished: ((checkers.LOST, checkers.TOO_MANY_IN_FLIGHT), 40),
    begin_after_the_first_batch: ((checkers.LOST,), 40),
    forget_what_became_available_behind: (STUCK, 80),
    never_expire: (STUCK, 20),
    renew_without_time: ((checkers.RELEASED_EARLY,), 40),
    expire_by_the_range_and_not_by_the_lock: ((checkers.RELEASED_EARLY,), 80),
    ignore_the_limit_in_flight: ((checkers.TOO_MANY_IN_FLIGHT,), 40),
    acquire_what_is_being_released: ((checkers.HELD_BY_TWO,), 40),
    deliver_gaps: ((checkers.NOT_VISIBLE,), 20),
    pass_what_is_held: ((checkers.LOST,), 20),
    fall_due_early: ((checkers.TOO_EARLY,), 20),
    never_fall_due: ((NOT_HEALED,), 20),
    forget_the_time_on_load: ((checkers.TOO_EARLY,), 40),
    forget_the_time_behind_another_record: ((checkers.TOO_EARLY,), 40),
    count_delayed_records_as_in_flight: ((NOT_HEALED,), 80),
    let_the_next_of_a_key_go_when_one_is_released: ((checkers.OUT_OF_ORDER,), 40),
    let_all_of_a_key_go: ((checkers.OUT_OF_ORDER,), 20),
    deliver_before_looking: ((checkers.OUT_OF_ORDER, checkers.TOO_EARLY), 40),
    always_prefer_the_highest: ((checkers.PASSED_OVER,), 80),
    give_up_without_a_letter: ((checkers.NO_LETTER,), 20),
    archive_before_the_letter_is_written: ((checkers.NO_LETTER, checkers.TOO_MANY_IN_FLIGHT), 20),
    take_what_is_given_up_as_finished: ((checkers.NO_LETTER, checkers.TOO_MANY_IN_FLIGHT), 80),
    deliver_what_is_given_up: ((checkers.FINISHED_AGAIN, checkers.COUNT_WRONG), 80),
    forget_letters_behind: (STUCK, 80),
    let_the_start_go_back: ((*TWICE, *LOSES, checkers.TOO_MANY_IN_FLIGHT), 80),
    believe_an_earlier_leader: ((*TWICE, *LOSES), 200),
    begin_again_when_asked_twice: (TWICE, 40),
    forget_the_write_that_makes_a_snapshot: ((*TWICE, *LOSES), 40),
    keep_the_first_of_two_batches: ((*TWICE, *LOSES, checkers.TRIED_TOO_OFTEN), 40),
}
"""Which promises may name a bug, and within how many seeds one must."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_breaks_the_promise_that_names_it(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    names, seeds = MUTANTS[mutant]
    mutant(monkeypatch)
    for seed in range(seeds):
        violation = run_seed(seed).violation
        if violation is not None:
            assert violation.startswith(names), f"seed {seed}: {violation}"
            return
    pytest.fail(f"{mutant.__name__} lived through {seeds} seeds")
