"""The window of a share partition as one would explain it: a dict of offsets. Slow, and meant to be obviously right.

It knows nothing of ranges, heaps or counters. Every offset has a record, and every question is answered by looking at
all of them. What a record says about its delivery is a tuple: key, priority, time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
CAUSES = {ACCEPT: "accepted", RELEASE: "released", REJECT: "rejected"}
RETRY_MS = 1_000
PASSED_OVER_MAX = 10
NOTHING = None, 4, -1

Fact = tuple[int | None, int, int]


@dataclass
class Wants:
    """What a group asks of its records."""

    delay: bool = False
    key_order: bool = False
    priority: bool = False
    delay_max: int = 1 << 30
    look_ahead: int = 1 << 30

    @property
    def is_ordered(self) -> bool:
        return self.key_order or self.priority


@dataclass
class Record:
    state: int = AVAILABLE
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = 0
    will_be: tuple[int, int, int] | None = None
    """State, deliveries and due time after the pending change."""
    key: int | None = None
    priority: int = 4
    due_ms: int = -1
    """It is delayed, until then."""
    due_later_ms: int = -1
    """The same, as soon as it does not wait for another record with its key."""
    failure: tuple[str, str] | None = None
    """Why it was given up."""
    is_fresh: bool = False
    """It was looked at, or waited, and was never delivered."""

    @property
    def is_finished(self) -> bool:
        return self.will_be is None and self.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def is_free(self) -> bool:
        """Nobody has it; but it may have to wait."""
        return self.will_be is None and self.state == AVAILABLE

    @property
    def is_archiving(self) -> bool:
        return self.will_be is None and self.state == ARCHIVING

    @property
    def is_given_up(self) -> bool:
        """Whether it is ARCHIVING, or will be."""
        return (self.state if self.will_be is None else self.will_be[0]) == ARCHIVING

    @property
    def is_held(self) -> bool:
        return self.will_be is None and self.state == ACQUIRED


@dataclass
class ModelChange:
    offsets: list[int] = field(default_factory=list)
    states: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    causes: dict[int, str] = field(default_factory=dict)
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    start: int = 0
    complete: int = 0


class Invalid(Exception):
    """The acknowledgement is refused; says as what."""


class ShareModel:
    def __init__(
        self,
        limit: int,
        in_flight_max: int,
        lock_ms: int,
        start: int,
        wants: Wants | None = None,
        *,
        has_letters: bool = False,
    ) -> None:
        self.has_letters = has_letters
        self.lost_letters = 0
        self.limit, self.in_flight_max, self.lock_ms = limit, in_flight_max, lock_ms
        self.wants = wants or Wants()
        self.start = self.end = self.looked = start
        self.passed_over = 0
        self.records: dict[int, Record] = {}
        self.totals = dict.fromkeys(("delivered", *CAUSES.values(), "expired"), 0)

    # What there is.

    def counts(self) -> dict[str, int]:
        free = sum(each.is_free for each in self.records.values())
        archiving = sum(each.is_given_up for each in self.records.values())
        return {
            "available": free - self.delayed,
            "acquired": len(self.records) - free - self.complete - archiving,
            "archiving": archiving,
            "delayed": self.delayed,
            "next_due_ms": self.next_due_ms(),
            "finished": self.complete,
            **self.totals,
        }

    @property
    def in_flight(self) -> int:
        return sum(not each.is_finished and self.waits(offset) == "no" for offset, each in self.records.items())

    @property
    def delayed(self) -> int:
        return sum(self.waits(offset) == "for time" for offset in self.records)

    def next_due_ms(self) -> int:
        return min((each.due_ms for each in self.records.values() if each.due_ms >= 0), default=-1)

    def is_blocked(self, offset: int) -> bool:
        """Whether an earlier record with its key is unfinished."""
        key = self.records[offset].key
        return key is not None and any(
            other < offset and each.key == key and not each.is_finished for other, each in self.records.items()
        )

    def waits(self, offset: int) -> str:
        """Why a record that nobody has is not in flight."""
        record = self.records[offset]
        if not record.is_free:
            return "no"
        if record.due_ms >= 0:
            return "for time"
        if self.is_blocked(offset):
            return "for key"
        return "for member" if record.is_fresh else "no"

    def available(self, *, has_room: bool = True) -> list[int]:
        """What may be acquired; without room, only what was delivered before."""
        kinds = ("no", "for member") if has_room else ("no",)
        return [offset for offset, each in self.records.items() if each.is_free and self.waits(offset) in kinds]

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.in_flight_max

    def next(self) -> int | None:
        """The record that should be delivered next, of those in the window."""
        offsets = self.available(has_room=self.has_room)
        if self.passed_over >= PASSED_OVER_MAX:
            return min(offsets, default=None)
        return min(offsets, key=lambda each: (-self.records[each].priority, each), default=None)

    def look_offset(self) -> int | None:
        if not self.wants.is_ordered:
            return None
        ahead = sum(self.waits(each) in ("for key", "for member") for each in self.records)
        is_enough = ahead > 3 * self.wants.look_ahead // 4 or self.delayed >= self.wants.delay_max
        return None if self.looked >= self.end and is_enough else self.looked

    @property
    def complete(self) -> int:
        return sum(
            each.is_finished or (each.will_be is not None and each.will_be[0] in (ACKNOWLEDGED, ARCHIVED))
            for each in self.records.values()
        )

    @property
    def held(self) -> int:
        return sum(each.is_held for each in self.records.values())

    def next_fetch(self) -> int:
        following = self.next()
        return self.end if following is None else following

    def next_deadline_ms(self) -> int | None:
        return min((each.deadline_ms for each in self.records.values() if each.is_held), default=None)

    # Look ahead.

    def learn(
        self, first: int, last: int, batches: Sequence[tuple[int, int]], facts: dict[int, Fact], wall_ms: int
    ) -> None:
        """Everything from `first` to `last` was looked at."""
        self._learn(first, last, batches, facts, wall_ms)
        self._advance()

    def _learn(
        self, first: int, last: int, batches: Sequence[tuple[int, int]], facts: dict[int, Fact], wall_ms: int
    ) -> None:
        if first > self.end or (self.wants.is_ordered and first > self.looked):
            return
        position = max(first, self.looked, self.start)
        facts = {each: facts[each] for each in facts if position <= each <= last}
        if not self.wants.is_ordered:
            facts = {offset: fact for offset, fact in facts.items() if fact[2] > wall_ms}
        until = last if self.wants.is_ordered else max(facts, default=-1)
        for offset in range(min(position, self.end), until + 1):
            key, priority, due_ms = facts.get(offset, NOTHING)
            is_delayed = due_ms > wall_ms
            if offset >= self.end:
                if is_delayed and self.delayed >= self.wants.delay_max:
                    self.looked = offset
                    return
                is_visible = any(base <= offset <= end for base, end in batches)
                self.records[offset] = Record(AVAILABLE if is_visible else ARCHIVED, is_fresh=is_visible)
                self.end = offset + 1
            record = self.records[offset]
            if offset in facts and not record.is_finished:
                record.key, record.priority = key, priority
                if is_delayed and record.is_free and record.due_ms < 0:
                    record.due_later_ms = due_ms
            self._settle()
        self.looked = max(self.looked, last + 1)

    def free_due(self, wall_ms: int) -> None:
        for record in self.records.values():
            if 0 <= record.due_ms <= wall_ms:
                record.due_ms = -1
        self._settle()

    def _settle(self) -> None:
        for offset, record in self.records.items():
            if record.is_free and record.due_later_ms >= 0 and not self.is_blocked(offset):
                record.due_ms, record.due_later_ms = record.due_later_ms, -1
            if self.waits(offset) in ("for time", "for key"):
                record.is_fresh = record.deliveries == 0

    # Acquire.

    def acquire(
        self,
        member: str,
        first: int,
        last: int,
        now_ms: int,
        *,
        max_records: int,
        has_record_limit: bool,
        batches: Sequence[tuple[int, int]],
    ) -> dict[int, int]:
        """The offsets that the member gets, with their deliveries."""
        got: dict[int, int] = {}
        if first > self.end:
            return got
        if self.wants.is_ordered or self.wants.delay:
            last = min(last, self.looked - 1)
        following, has_room = self.next(), self.has_room
        self.level = 4 if following is None else self.records[following].priority
        if max_records > 0:
            self._acquire(member, max(first, self.start), last, now_ms, max_records, has_record_limit, batches, got)
        if got and any(each.priority != 4 and not each.is_finished for each in self.records.values()):
            if any(each < min(got) for each in self.available(has_room=has_room)):
                self.passed_over += 1
            elif has_room:
                self.passed_over = 0
        self._advance()
        return got

    def _acquire(
        self,
        member: str,
        first: int,
        last: int,
        now_ms: int,
        max_records: int,
        has_record_limit: bool,
        batches: Sequence[tuple[int, int]],
        got: dict[int, int],
    ) -> None:
        position = first
        for base, end in batches:
            batch = range(max(base, position), min(end, last) + 1)
            if not batch:
                continue
            if len(got) >= max_records:
                return
            self._hide(range(position, batch[0]))
            most = max_records - len(got) if has_record_limit else len(batch)
            if not self._take(member, batch, now_ms, most, has_record_limit, got):
                return
            position = batch[-1] + 1
        if len(got) < max_records:
            self._hide(range(position, last + 1))

    def _take(
        self, member: str, batch: Sequence[int], now_ms: int, most: int, has_record_limit: bool, got: dict[int, int]
    ) -> bool:
        """Take up to `most` records of one batch; whether the next batch may be looked at."""
        fill = len(got) + most
        throttle = max(2, (self.limit + 1) // 2)

        def take(offset: int) -> None:
            record = self.records.setdefault(offset, Record())
            record.state, record.member, record.deadline_ms = ACQUIRED, member, now_ms + self.lock_ms
            record.deliveries += 1
            record.is_fresh = False
            got[offset] = record.deliveries
            self.totals["delivered"] += 1

        for run in self._runs([offset for offset in batch if offset < self.end]):
            deliveries = self.records[run[0]].deliveries
            if len(got) >= fill:
                return False
            if deliveries >= throttle:
                if not got:
                    alone = deliveries >= self.limit - 1
                    size = 1 if alone else max(1, len(run) // 2 ** (deliveries - throttle + 1))
                    for offset in run[: min(size, most)]:
                        take(offset)
                return False
            for offset in run:
                if len(got) >= fill:
                    return False
                needs_room = self.records[offset].is_fresh and (has_record_limit or offset == run[0])
                if needs_room and not self.has_room:
                    break
                take(offset)
        new = [offset for offset in batch if offset >= self.end]
        for offset in new:
            needs_room = has_record_limit or offset == new[0]
            if len(got) >= fill or (needs_room and not self.has_room):
                return False
            self.end = offset + 1
            take(offset)
        return True

    def _runs(self, offsets: Iterable[int]) -> list[list[int]]:
        """The available ones of these offsets, equal neighbours together."""
        available = set(self.available())
        runs: list[list[int]] = []
        for offset in offsets:
            record = self.records[offset]
            if offset not in available or record.priority != self.level:
                continue
            before = self.records[runs[-1][-1]] if runs and runs[-1][-1] == offset - 1 else None
            if before is not None and (before.deliveries, before.is_fresh) == (record.deliveries, record.is_fresh):
                runs[-1].append(offset)
            else:
                runs.append([offset])
        return runs

    def _hide(self, offsets: Iterable[int]) -> None:
        """There is no record for members at these offsets."""
        available = set(self.available())
        for offset in offsets:
            if offset >= self.end or offset in available:
                self.records[offset] = Record(ARCHIVED)
                self.end = max(self.end, offset + 1)

    # Acknowledge.

    def acknowledge(
        self,
        member: str,
        batches: Sequence[tuple[Any, ...]],
        now_ms: int,
        *,
        delay_ms: int = 0,
        wall_ms: int = 0,
    ) -> ModelChange | Invalid:
        """Each batch has its first and last offset, its types, and the error of the member, if it names one."""
        end = -1
        due_ms = wall_ms + delay_ms if delay_ms else -1
        for first, last, types, *_ in batches:
            if not end < first <= last or len(types) not in (1, last - first + 1) or not set(types) <= set(range(5)):
                return Invalid("request")
            end = last
        verdicts: dict[int, int] = {}
        errors: dict[int, tuple[str, str]] = {}
        for first, last, types, *error in batches:
            if last >= self.end:
                return Invalid("request")
            for offset in range(max(first, self.start), last + 1):
                record = self.records[offset]
                if not (record.is_held and record.member == member):
                    return Invalid("state")
                verdicts[offset] = types[0] if len(types) == 1 else types[offset - first]
                if error:
                    errors[offset] = error[0]
        for offset, kind in verdicts.items():
            if kind == RENEW:
                self.records[offset].deadline_ms = now_ms + self.lock_ms
        return self._begin(
            {
                offset: self._outcome(kind, self.records[offset], due_ms)
                for offset, kind in verdicts.items()
                if kind != RENEW
            },
            {offset: CAUSES[kind] for offset, kind in verdicts.items() if kind in CAUSES},
            {offset: ("Rejected", "") for offset, kind in verdicts.items() if kind == REJECT} | errors,
        )

    def _outcome(self, kind: int, record: Record, due_ms: int = -1) -> tuple[int, int, int]:
        state = self._after(kind, record)
        return state, record.deliveries, due_ms if state == AVAILABLE else -1

    def _after(self, kind: int, record: Record) -> int:
        if kind == ACCEPT:
            return ACKNOWLEDGED
        if kind == RELEASE and record.deliveries < self.limit:
            return AVAILABLE
        return ARCHIVING if self.has_letters and kind != GAP else ARCHIVED

    def release_member(self, member: str, *, were_delivered: bool) -> ModelChange:
        states = {}
        for offset, record in self.records.items():
            if record.is_held and record.member == member:
                if were_delivered:
                    states[offset] = self._outcome(RELEASE, record)
                else:
                    states[offset] = AVAILABLE, record.deliveries - 1, -1
        return self._begin(states, dict.fromkeys(states, "released"))

    def on_timer(self, now_ms: int) -> ModelChange:
        states = {
            offset: self._outcome(RELEASE, record)
            for offset, record in self.records.items()
            if record.is_held and record.deadline_ms <= now_ms
        }
        return self._begin(states, dict.fromkeys(states, "expired"))

    # Dead letters.

    def letters_due(self, most: int) -> list[int]:
        return sorted(offset for offset, each in self.records.items() if each.is_archiving)[:most]

    def archive(self, offsets: Iterable[int]) -> ModelChange:
        return self._begin({each: (ARCHIVED, self.records[each].deliveries, -1) for each in offsets}, {})

    def _begin(
        self,
        states: dict[int, tuple[int, int, int]],
        causes: dict[int, str],
        errors: dict[int, tuple[str, str]] | None = None,
    ) -> ModelChange:
        failures = {}
        for offset, state in states.items():
            self.records[offset].will_be = state
            if state[0] == ARCHIVING:
                failures[offset] = (errors or {}).get(offset, ("DeliveryLimitReached", ""))
        return ModelChange(sorted(states), states, causes, failures, self.start, self.complete)

    def commit(self, change: ModelChange) -> None:
        for offset in change.offsets:
            if offset in self.records:
                record = self.records[offset]
                assert record.will_be is not None
                if offset in change.causes:
                    self.totals[change.causes[offset]] += 1
                record.state, record.deliveries, record.due_ms = record.will_be
                record.will_be, record.member = None, ""
                record.failure = change.failures.get(offset)
        self._settle()
        self._advance()

    def roll_back(self, change: ModelChange, now_ms: int) -> None:
        for offset in change.offsets:
            if offset in self.records:
                record = self.records[offset]
                record.will_be = None
                if record.deadline_ms <= now_ms:
                    record.deadline_ms = now_ms + RETRY_MS

    # The log.

    def advance_start(self, log_start: int) -> None:
        if log_start > self.start:
            self.lost_letters += sum(each.is_given_up for offset, each in self.records.items() if offset < log_start)
            self._begin_at(log_start)
            self._settle()
            self._advance()

    def _advance(self) -> None:
        while self.start in self.records and self.records[self.start].is_finished:
            self._begin_at(self.start + 1)

    def _begin_at(self, offset: int) -> None:
        self.start = offset
        self.end = max(self.end, offset)
        self.looked = max(self.looked, offset)
        self.records = {each: record for each, record in self.records.items() if each >= offset}

    # Leader changes.

    def durable(
        self, written: dict[int, tuple[int, int, int]], failures: dict[int, tuple[str, str]], start: int
    ) -> ShareModel:
        """A new leader's window, from what was written."""
        other = ShareModel(
            self.limit, self.in_flight_max, self.lock_ms, start, self.wants, has_letters=self.has_letters
        )
        for offset in range(start, max((each + 1 for each in written), default=start)):
            state, deliveries, due_ms = written.get(offset, (AVAILABLE, 0, -1))
            other.records[offset] = Record(state, deliveries, due_ms=due_ms)
            if state == ARCHIVING:
                other.records[offset].failure = failures[offset]
            other.end = offset + 1
        other._settle()
        other._advance()
        return other
