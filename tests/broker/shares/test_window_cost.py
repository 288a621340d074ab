"""What an operation touches does not grow with the window: counted, because time depends on the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.broker.shares import locks
from millpond.broker.shares.acquisition import BATCH_RECORDS_MAX, RANGES_AT_ONCE, Acquired, AcquireMode
from millpond.broker.shares.verdicts import Acknowledgement
from millpond.broker.shares.window import ShareWindow
from millpond.broker.shares.window_settings import ShareSettings
from millpond.coordinators.shares.range_map import CHUNK_MAX, RangeMap
from millpond.coordinators.shares.state_batches import RecordState, StateBatch

SMALL, LARGE = 2_000, 100_000


def alternating(size: int) -> ShareWindow:
    """Every second record is accepted, the others are available."""
    states = (RecordState.ACKNOWLEDGED, RecordState.AVAILABLE)
    batches = [StateBatch(offset, offset, states[offset % 2], 1) for offset in range(size)]
    return ShareWindow.load(ShareSettings(in_flight_max=1 << 30), 0, batches)


def look_ups(window: ShareWindow, patch: Any, work: Callable[[ShareWindow], object]) -> int:
    """How many ranges are looked up for this work."""
    count = 0
    real = RangeMap._position

    def position(self: Any, offset: int) -> tuple[int, int]:
        nonlocal count
        count += 1
        return real(self, offset)

    with patch.context() as inner:
        inner.setattr(RangeMap, "_position", position)
        work(window)
    return count


def acquire(first: int, last: int) -> Callable[[ShareWindow], object]:
    return lambda window: window.acquire(
        "A",
        first,
        last,
        0,
        max_records=1_000,
        batch_size=100,
        mode=AcquireMode.BATCH_OPTIMIZED,
        batches=[(first, last)],
    )


def accept(first: int) -> Callable[[ShareWindow], object]:
    return lambda window: window.commit(window.acknowledge("A", [Acknowledgement(first, first, [1])], 0))


WORK = {
    "acquire": acquire(1_001, 1_020),
    "accept": accept(1_001),
    "expire": lambda window: window.commit(window.on_timer(1 << 40)),
    "fetch": lambda window: window.next_fetch_offset(),
    "leave": lambda window: window.release_member("B", were_delivered=False),
    "retention": lambda window: window.advance_start(1_010),
}


def archiving(size: int) -> ShareWindow:
    """Every second record waits for its letter."""
    states = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVING)
    batches = [StateBatch(offset, offset, states[offset % 2], 1) for offset in range(size)]
    return ShareWindow.load(ShareSettings(in_flight_max=1 << 30, has_dead_letters=True), 0, batches)


def write_letters(window: ShareWindow) -> None:
    due = window.letters_due(20)
    assert len(due) == 20
    window.commit(window.archive([(first, last) for first, last, _ in due]))


def test_letters_are_found_as_fast_in_a_large_window(monkeypatch: Any) -> None:
    small, large = archiving(SMALL), archiving(LARGE)
    for _ in range(3):
        one, other = (look_ups(window, monkeypatch, write_letters) for window in (small, large))
        assert one == other
        assert one < 400


def test_work_is_the_same_in_a_small_and_in_a_large_window(monkeypatch: Any) -> None:
    small, large = alternating(SMALL), alternating(LARGE)
    assert len(large._slots) == LARGE - 1
    for name, work in WORK.items():
        one, other = look_ups(small, monkeypatch, work), look_ups(large, monkeypatch, work)
        assert one == other, name
        assert one < 200, name
    assert max(map(len, large._slots._chunks)) <= CHUNK_MAX


def test_a_slow_record_keeps_nothing_else_in_memory() -> None:
    window = ShareWindow(ShareSettings(in_flight_max=100), 0)
    acquire(0, 0)(window)
    for first in range(1, 5_001, 10):
        acquire(first, first + 9)(window)
        types = [1, 3, 1, 0, 1, 3, 1, 1, 1, 1]
        window.commit(window.acknowledge("A", [Acknowledgement(first, first + 9, types)], 0))
    assert (window.start_offset, window.end_offset, window.in_flight) == (0, 5_001, 1)
    assert len(window._locks._heap) <= locks.EXPIRED_ENTRIES_MIN + 3


@pytest.mark.parametrize("held", [1, 10])
def test_entries_of_locks_that_are_gone_do_not_pile_up(held: int) -> None:
    """A member that acquires records one by one for the whole duration of a lock."""
    window = ShareWindow(ShareSettings(in_flight_max=100), 0)
    for offset in range(4_000):
        acquire(offset, offset)(window)
        if offset >= held:
            accept(offset - held)(window)
    assert window.held_count == held
    assert len(window._locks._heap) <= locks.EXPIRED_ENTRIES_MIN + 3 * held
    assert window.next_deadline_ms() == 30_000


def uneven(size: int) -> ShareWindow:
    """All records are available, and neighbours have different numbers of deliveries."""
    batches = [StateBatch(offset, offset, RecordState.AVAILABLE, offset % 2) for offset in range(size)]
    return ShareWindow.load(ShareSettings(in_flight_max=size), 0, batches)


def take_all(window: ShareWindow, size: int) -> list[Acquired]:
    taken: list[Acquired] = []
    while acquired := window.acquire(
        *("A", window.next_fetch_offset(), size - 1, 0),
        max_records=size,
        batch_size=1,
        mode=AcquireMode.RECORD_LIMIT,
        batches=[(0, size - 1)],
    ):
        assert len(acquired) <= RANGES_AT_ONCE
        taken += acquired
    return taken


def test_one_acquisition_takes_so_many_ranges_at_most() -> None:
    size = 3 * RANGES_AT_ONCE + 10
    assert take_all(uneven(size), size) == [Acquired(offset, offset, 1 + offset % 2) for offset in range(size)]


@pytest.mark.parametrize("how", ["leave", "expire"])
def test_a_lock_on_many_ranges_is_released_in_parts(how: str) -> None:
    size = 1_000
    window = uneven(size)
    taken = take_all(window, size)
    released = []
    while window.held_count:
        change = (
            window.release_member("A", were_delivered=True, records_max=30)
            if how == "leave"
            else window.on_timer(1 << 40, 30)
        )
        assert 0 < len(change.moves) <= 30
        released += [(each.first, each.last) for each in change.moves]
        window.commit(change)
    assert sorted(released) == [(first, last) for first, last, _ in taken]
    assert window.next_deadline_ms() is None


def test_a_batch_that_claims_billions_of_records_is_taken_in_parts() -> None:
    window = ShareWindow(ShareSettings(in_flight_max=100), 0)
    acquire(0, 1 << 31)(window)
    assert (window.end_offset, window.in_flight) == (BATCH_RECORDS_MAX, BATCH_RECORDS_MAX)
    acquire(window.next_fetch_offset(), 1 << 31)(window)
    assert window.end_offset == BATCH_RECORDS_MAX, "the limit of records in flight"
    window.commit(window.acknowledge("A", [Acknowledgement(0, BATCH_RECORDS_MAX - 1, [1])], 0))
    acquire(window.next_fetch_offset(), 1 << 31)(window)
    assert window.end_offset == 2 * BATCH_RECORDS_MAX
