"""Invariants of a share partition, checked after every event. They know single offsets only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millpond.coordinators.shares.state_batches import TERMINAL, RecordState
from millpond.sim.machines.run import Violation

FINISHED_AGAIN = "a finished record was delivered again"
LOST = "a record was finished without a verdict"
HELD_BY_TWO = "a record was delivered while another member held it"
COUNT_WRONG = "a delivery was counted wrongly"
TRIED_TOO_OFTEN = "a record was delivered more often than the limit"
RELEASED_EARLY = "a lock ended early"
LOCK_OUTLIVED = "a lock outlived its deadline"
TOO_MANY_IN_FLIGHT = "more records are in flight than allowed"
NOT_VISIBLE = "an offset without a record was delivered"
HOLDER_REFUSED = "a member was refused what it held"
STRANGER_BELIEVED = "a member acknowledged what it did not hold"
GIVEN_UP_EARLY = "a record was archived before its last delivery"
NOT_WRITTEN = "a verdict was not written"
NO_LETTER = "a record was archived before its dead letter was written"
TOO_EARLY = "a delayed record was delivered early"
OUT_OF_ORDER = "a record was delivered before an earlier one with its key was finished"
PASSED_OVER = "a record was passed over too often"

LATE_MS_MAX = 1
"""How long after its deadline a lock may be in force: timers run at the deadline."""


PASSED_OVER_MAX = 11
"""How often acquisitions may pass over the earliest record that could be delivered."""


def _is_end(state: int) -> bool:
    """Whether no member receives the record again."""
    return state in TERMINAL or state == RecordState.ARCHIVING


class Checkers:
    def __init__(self, limit: int, in_flight_max: int, *, has_letters: bool = False) -> None:
        self.limit = limit
        self.has_letters = has_letters
        """Whether records that are given up get a dead letter."""
        self.letters: set[int] = set()
        """Records whose letter is written."""
        self.given_up: set[int] = set()
        """Records that wait for their letter, as the present leader knows."""
        self.in_flight_max = in_flight_max
        self.wall_ms = 0
        """The latest time that the wall clock has shown."""
        self.keys: dict[int, int] = {}
        """The keys of records, where the group asks for order."""
        self.due: dict[int, int] = {}
        """No record is delivered before its time; that of its header, or of its last release."""
        self.passed_over: tuple[int, int] = (-1, 0)
        """The earliest record that could be delivered, and how often others were delivered since."""
        self.records: set[int] = set()
        """The offsets at which the log has something for members."""
        self.finished: set[int] = set()
        """Records whose end was confirmed to a member, or that were tried as often as allowed."""
        self.closed: set[int] = set()
        """Records that the present leader knows to be finished."""
        self.deliveries: dict[int, int] = {}
        """As written down, or as counted by the present leader."""
        self.holders: dict[int, tuple[str, int]] = {}
        """Who holds a record, and until when."""
        self.pending: set[int] = set()
        """Records whose verdict is being written."""
        self.verdicts: dict[int, int] = {}
        """How many members finished a record and were not told that they failed."""

    def loaded(self, written: Mapping[int, tuple[int, int]], start: int) -> None:
        """A leader has read what was written: nobody holds anything."""
        self.holders.clear()
        self.pending.clear()
        self.closed = {offset for offset, (state, _) in written.items() if state in TERMINAL}
        self.closed |= {offset for offset in self.records if offset < start}
        self.given_up = {offset for offset, (state, _) in written.items() if state == RecordState.ARCHIVING}
        self.deliveries = {offset: count for offset, (_, count) in written.items() if offset >= start}
        self.passed_over = (-1, 0)

    def acquired(self, member: str, first: int, last: int, count: int, deadline_ms: int) -> None:
        for offset in range(first, last + 1):
            if offset not in self.records:
                raise Violation(f"{NOT_VISIBLE}: {offset}")
            if offset in self.finished or offset in self.given_up:
                raise Violation(f"{FINISHED_AGAIN}: {offset} to {member}")
            if offset in self.holders or offset in self.pending:
                raise Violation(f"{HELD_BY_TWO}: {offset} by {self.holders.get(offset)}, and now {member}")
            if self.due.get(offset, 0) > self.wall_ms:
                raise Violation(f"{TOO_EARLY}: {offset}, due at {self.due[offset]}, at {self.wall_ms}")
            if earlier := self.unfinished_before(offset):
                raise Violation(f"{OUT_OF_ORDER}: {offset} before {earlier}")
            known = self.deliveries.get(offset, 0) + 1
            if count != known:
                raise Violation(f"{COUNT_WRONG}: {offset} for the {known}. time, told {count}")
            if count > self.limit:
                raise Violation(f"{TRIED_TOO_OFTEN}: {offset} for the {count}. time")
            self.deliveries[offset] = count
            self.holders[offset] = member, deadline_ms

    def unfinished_before(self, offset: int) -> list[int]:
        """Records with the same key that have to be finished first."""
        key = self.keys.get(offset)
        if key is None:
            return []
        return [
            each
            for each, other in self.keys.items()
            if each < offset and other == key and each in self.records and each not in self.closed
        ]

    def chosen(self, acquired: Iterable[int], start: int, looked: int) -> None:
        """A member got these records, and there was room for any."""
        waiting = self.records - self.holders.keys() - self.pending - self.closed - self.given_up
        first = min((each for each in waiting if start <= each < looked), default=-1)
        is_passed_over = 0 <= first < min(acquired)
        count = (self.passed_over[1] if first == self.passed_over[0] else 0) + 1 if is_passed_over else 0
        if count > PASSED_OVER_MAX:
            raise Violation(f"{PASSED_OVER}: {first}, {count} times")
        self.passed_over = (first, count)

    def acknowledged(self, member: str, offsets: Iterable[int], now_ms: int, *, accepted: bool) -> None:
        """A leader has answered an acknowledgement, before anything is written."""
        held = [self.holders.get(each, ("", 0))[0] == member and each not in self.pending for each in offsets]
        if accepted and not all(held):
            raise Violation(f"{STRANGER_BELIEVED}: {member}")
        if not accepted and all(held):
            raise Violation(f"{HOLDER_REFUSED}: {member}")

    def renewed(self, offsets: Iterable[int], deadline_ms: int) -> None:
        for offset in offsets:
            self.holders[offset] = self.holders[offset][0], deadline_ms

    def began(
        self,
        verdicts: Mapping[int, bool],
        written: Mapping[int, tuple[int, int]],
        rejected: Collection[int] = (),
    ) -> None:
        """Records leave their holders, finished or not, and a change that says so is to be written."""
        if verdicts.keys() != written.keys():
            raise Violation(f"{NOT_WRITTEN}: {sorted(verdicts.keys() ^ written.keys())}")
        for offset, is_finished in verdicts.items():
            needs_letter = self.has_letters and (not is_finished or offset in rejected)
            if needs_letter and written[offset][0] == RecordState.ARCHIVED:
                raise Violation(f"{NO_LETTER}: {offset}")
            is_archived = not is_finished and _is_end(written[offset][0])
            if is_archived and self.deliveries[offset] < self.limit:
                raise Violation(f"{GIVEN_UP_EARLY}: {offset} after {self.deliveries[offset]} deliveries")
            if is_finished or is_archived:
                self.verdicts[offset] = self.verdicts.get(offset, 0) + 1
        self.pending |= verdicts.keys()

    def expired(self, offsets: Iterable[int], now_ms: int) -> None:
        for offset in offsets:
            if offset in self.holders and now_ms < self.holders[offset][1]:
                raise Violation(f"{RELEASED_EARLY}: {offset} at {now_ms}, held {self.holders[offset]}")

    def committed(
        self, verdicts: Mapping[int, bool], written: Mapping[int, tuple[int, int]], due: Mapping[int, int]
    ) -> None:
        for offset, is_finished in verdicts.items():
            state, count = written[offset]
            if state == RecordState.ARCHIVING:
                self.given_up.add(offset)
            elif is_finished or state in TERMINAL:
                self.finished.add(offset)
                self.closed.add(offset)
                self.given_up.discard(offset)
            else:
                # Whoever finished it before in doubt is overruled: it will be delivered again.
                self.verdicts.pop(offset, None)
                self.deliveries[offset] = count
                if offset in due:
                    self.due[offset] = due[offset]
            self._let_go(offset)

    def rolled_back(
        self, verdicts: Mapping[int, bool], written: Mapping[int, tuple[int, int]], retry_ms: int, now_ms: int
    ) -> None:
        for offset, is_finished in verdicts.items():
            if (is_finished or _is_end(written[offset][0])) and offset in self.verdicts:
                self.verdicts[offset] -= 1
            self.pending.discard(offset)
            if offset in self.holders and self.holders[offset][1] <= now_ms:
                self.holders[offset] = self.holders[offset][0], now_ms + retry_ms

    def passed(self, before: int, start: int) -> None:
        """The start offset of a window or of the written state has moved."""
        for offset in range(before, start):
            if offset in self.records and offset not in self.finished and not self.verdicts.get(offset):
                raise Violation(f"{LOST}: {offset}, delivered {self.deliveries.get(offset, 0)} times")
            if offset in self.records and offset in self.given_up and offset not in self.letters:
                raise Violation(f"{NO_LETTER}: {offset}")

    def looked(self, now_ms: int) -> None:
        for offset, (member, deadline_ms) in self.holders.items():
            if now_ms > deadline_ms + LATE_MS_MAX and offset not in self.pending:
                raise Violation(f"{LOCK_OUTLIVED}: {offset} of {member} until {deadline_ms}, now {now_ms}")

    def may_add(self, start: int, end: int) -> None:
        """A record after the window's end is about to be delivered."""
        unfinished = sum(
            each in self.holders
            or each in self.pending
            or (self.deliveries.get(each, 0) > 0 and each not in self.due)
            for each in self.records - self.closed
            if start <= each < end
        )
        if unfinished >= self.in_flight_max:
            raise Violation(f"{TOO_MANY_IN_FLIGHT}: one more than {unfinished}")

    def forget_before(self, start: int) -> None:
        """Retention has removed these records."""
        for offset in [each for each in self.records if each < start]:
            self.records.discard(offset)
            self._let_go(offset)

    def letters_begun(self, written: Mapping[int, tuple[int, int]]) -> None:
        """Records are to be archived because their letters are written."""
        for offset, (state, _) in written.items():
            if state != RecordState.ARCHIVED:
                raise Violation(f"{NOT_WRITTEN}: {offset} is {state} after its letter")
            if offset in self.records and offset not in self.letters:
                raise Violation(f"{NO_LETTER}: {offset}")

    def _let_go(self, offset: int) -> None:
        self.holders.pop(offset, None)
        self.pending.discard(offset)
