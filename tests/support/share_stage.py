"""A share partition on a stage: one window, a log in batches of five, and writes that succeed when a test says so."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.shares.acquisition import AcquireMode
from millpond.broker.shares.slots import Change, Waits
from millpond.broker.shares.verdicts import Acknowledgement
from millpond.broker.shares.window import ShareWindow
from millpond.coordinators.shares.state_batches import RecordState

NAMES = {
    RecordState.AVAILABLE: "available",
    RecordState.ACKNOWLEDGED: "accepted",
    RecordState.ARCHIVING: "archiving",
    RecordState.ARCHIVED: "archived",
}
WAITS = {Waits.FOR_MEMBER: "known", Waits.FOR_KEY: "behind", Waits.FOR_TIME: "delayed"}
TYPES = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}
LOG = tuple((base, base + 4) for base in range(0, 1_000, 5))


class Stage:
    def __init__(self, window: ShareWindow) -> None:
        self.window = window
        self.now_ms = 0
        self.log = LOG

    def fetch(self, member: str, most: int, *, mode: int = 0, batch_size: int = 500, read: int = 100) -> str:
        """The ranges that a member gets, each with the number of its deliveries."""
        first = self.window.next_fetch_offset()
        last = first + read - 1
        acquired = self.window.acquire(
            member,
            first,
            last,
            self.now_ms,
            max_records=most,
            batch_size=batch_size,
            mode=AcquireMode(mode),
            batches=[each for each in self.log if each[1] >= first and each[0] <= last],
        )
        return ", ".join(f"{_range(each.first, each.last)} x{each.deliveries}" for each in acquired)

    def tell(self, member: str, *verdicts: tuple[int, int, str]) -> Change:
        """Acknowledge ranges, with one type or with one for each record."""
        return self.window.acknowledge(
            member,
            [
                Acknowledgement(first, last, [TYPES[each] for each in types.split()])
                for first, last, types in verdicts
            ],
            self.now_ms,
        )

    def done(self, member: str, *verdicts: tuple[int, int, str]) -> None:
        """Acknowledge, and write it at once."""
        self.window.commit(self.tell(member, *verdicts))

    def refused(self, member: str, *verdicts: tuple[int, int, str]) -> ErrorCode:
        before = self.state
        with pytest.raises(Refused) as refusal:
            self.tell(member, *verdicts)
        assert self.state == before, "a refusal changes nothing"
        return refusal.value.code

    def pass_time(self, ms: int) -> Change:
        self.now_ms += ms
        return self.window.on_timer(self.now_ms)

    @property
    def state(self) -> str:
        """The window in one line: its start, its ranges, its end."""
        window, ranges = self.window, []
        for first, last, slot in window.slots(window.start_offset, window.end_offset):
            name = slot.lock.member_id if slot.lock else NAMES[slot.state]
            if slot.waits:
                name = WAITS[slot.waits]
            times = f" x{slot.deliveries}" if slot.deliveries and slot.state < RecordState.ACKNOWLEDGED else ""
            ranges.append(f"{_range(first, last)} {name}{times}" + (" pending" if slot.change else ""))
        return f"{window.start_offset}| " + "".join(f"{each}; " for each in ranges) + f"|{window.end_offset}"


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def written(change: Change) -> str:
    """What a change writes."""
    return ", ".join(
        f"{_range(each.first, each.last)} {NAMES[each.state]} x{each.deliveries}" for each in change.batches
    )
