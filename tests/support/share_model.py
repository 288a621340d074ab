"""The window of a share partition as one would explain it: a dict of offsets. Slow, and meant to be obviously right.

It knows nothing of ranges, heaps or counters. Every offset has a record, and every question is answered by looking at
all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
CAUSES = {ACCEPT: "accepted", RELEASE: "released", REJECT: "rejected"}
RETRY_MS = 1_000


@dataclass
class Record:
    state: int = AVAILABLE
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = 0
    will_be: tuple[int, int] | None = None
    """State and deliveries after the pending change."""
    failure: tuple[str, str] | None = None
    """Why it was given up."""

    @property
    def is_finished(self) -> bool:
        return self.will_be is None and self.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def is_available(self) -> bool:
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
    states: dict[int, tuple[int, int]] = field(default_factory=dict)
    causes: dict[int, str] = field(default_factory=dict)
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    start: int = 0
    complete: int = 0


class Invalid(Exception):
    """The acknowledgement is refused; says as what."""


class ShareModel:
    def __init__(
        self, limit: int, in_flight_max: int, lock_ms: int, start: int, *, has_letters: bool = False
    ) -> None:
        self.has_letters = has_letters
        self.lost_letters = 0
        self.limit, self.in_flight_max, self.lock_ms = limit, in_flight_max, lock_ms
        self.start = self.end = start
        self.records: dict[int, Record] = {}
        self.totals = dict.fromkeys(("delivered", *CAUSES.values(), "expired"), 0)

    # What there is.

    def counts(self) -> dict[str, int]:
        available = sum(each.is_available for each in self.records.values())
        archiving = sum(each.is_given_up for each in self.records.values())
        return {
            "available": available,
            "acquired": len(self.records) - available - self.complete - archiving,
            "archiving": archiving,
            "finished": self.complete,
            **self.totals,
        }

    @property
    def in_flight(self) -> int:
        return sum(not each.is_finished for each in self.records.values())

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
        return min((offset for offset, each in self.records.items() if each.is_available), default=self.end)

    def next_deadline_ms(self) -> int | None:
        return min((each.deadline_ms for each in self.records.values() if each.is_held), default=None)

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
        if max_records > 0:
            self._acquire(member, max(first, self.start), last, now_ms, max_records, has_record_limit, batches, got)
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
                take(offset)
        new = [offset for offset in batch if offset >= self.end]
        for offset in new:
            needs_room = has_record_limit or offset == new[0]
            if len(got) >= fill or (needs_room and self.in_flight >= self.in_flight_max):
                return False
            self.end = offset + 1
            take(offset)
        return True

    def _runs(self, offsets: Iterable[int]) -> list[list[int]]:
        """The available ones of these offsets, neighbours with equal deliveries together."""
        runs: list[list[int]] = []
        for offset in offsets:
            if not self.records[offset].is_available:
                continue
            before = runs[-1][-1] if runs else None
            if (
                before is not None
                and before == offset - 1
                and self.records[before].deliveries == self.records[offset].deliveries
            ):
                runs[-1].append(offset)
            else:
                runs.append([offset])
        return runs

    def _hide(self, offsets: Iterable[int]) -> None:
        """There is no record for members at these offsets."""
        for offset in offsets:
            if offset >= self.end or self.records[offset].is_available:
                self.records[offset] = Record(ARCHIVED)
                self.end = max(self.end, offset + 1)

    # Acknowledge.

    def acknowledge(self, member: str, batches: Sequence[tuple[Any, ...]], now_ms: int) -> ModelChange | Invalid:
        """Each batch has its first and last offset, its types, and the error of the member, if it names one."""
        end = -1
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
                offset: (self._after(kind, self.records[offset]), self.records[offset].deliveries)
                for offset, kind in verdicts.items()
                if kind != RENEW
            },
            {offset: CAUSES[kind] for offset, kind in verdicts.items() if kind in CAUSES},
            {offset: ("Rejected", "") for offset, kind in verdicts.items() if kind == REJECT} | errors,
        )

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
                    states[offset] = self._after(RELEASE, record), record.deliveries
                else:
                    states[offset] = AVAILABLE, record.deliveries - 1
        return self._begin(states, dict.fromkeys(states, "released"))

    def on_timer(self, now_ms: int) -> ModelChange:
        states = {
            offset: (self._after(RELEASE, record), record.deliveries)
            for offset, record in self.records.items()
            if record.is_held and record.deadline_ms <= now_ms
        }
        return self._begin(states, dict.fromkeys(states, "expired"))

    # Dead letters.

    def letters_due(self, most: int) -> list[int]:
        return sorted(offset for offset, each in self.records.items() if each.is_archiving)[:most]

    def archive(self, offsets: Iterable[int]) -> ModelChange:
        return self._begin({each: (ARCHIVED, self.records[each].deliveries) for each in offsets}, {})

    def _begin(
        self,
        states: dict[int, tuple[int, int]],
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
                (record.state, record.deliveries), record.will_be, record.member = record.will_be, None, ""
                record.failure = change.failures.get(offset)
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
            self._advance()

    def _advance(self) -> None:
        while self.start in self.records and self.records[self.start].is_finished:
            self._begin_at(self.start + 1)

    def _begin_at(self, offset: int) -> None:
        self.start = offset
        self.end = max(self.end, offset)
        self.records = {each: record for each, record in self.records.items() if each >= offset}

    # Leader changes.

    def durable(
        self, written: dict[int, tuple[int, int]], failures: dict[int, tuple[str, str]], start: int
    ) -> ShareModel:
        """A new leader's window, from what was written."""
        other = ShareModel(self.limit, self.in_flight_max, self.lock_ms, start, has_letters=self.has_letters)
        for offset in range(start, max((each + 1 for each in written), default=start)):
            state, deliveries = written.get(offset, (AVAILABLE, 0))
            other.records[offset] = Record(state, deliveries)
            if state == ARCHIVING:
                other.records[offset].failure = failures[offset]
            other.end = offset + 1
        other._advance()
        return other
