"""The state of ranges in a share window, and changes of it that are to be written."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.locks import Lock
from millpond.coordinators.shares.state_batches import NO_TIME, TERMINAL, Failure, RecordState, StateBatch


class Waits(IntEnum):
    """Why available records do not count as in flight, and whether they may be acquired."""

    NO = 0
    """They were acquired before: they are in flight."""
    FOR_MEMBER = 1
    """They were looked at, and never acquired."""
    FOR_KEY = 2
    """An earlier record with the same key is unfinished."""
    FOR_TIME = 3
    """They are delayed."""


class Slot(NamedTuple):
    """The state of a range. While `change` is pending, the state and deliveries that it will have."""

    state: RecordState
    deliveries: int
    lock: Lock | None = None
    change: Change | None = None
    waits: Waits = Waits.NO
    failure: Failure | None = None
    """Of records whose dead letter is not yet written."""


class Cause(IntEnum):
    """Why a range changes."""

    GAP = 0
    ACCEPTED = 1
    RELEASED = 2
    REJECTED = 3
    EXPIRED = 4
    LETTER = 5
    """The dead letter was written, or none can be."""


class Move(NamedTuple):
    """A range of a change, as it was before, and as it will be."""

    first: int
    last: int
    before: Slot
    state: RecordState
    deliveries: int
    cause: Cause
    due_ms: int = NO_TIME
    """Until then, by the wall clock, released records are delayed."""
    failure: Failure | None = None


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


_SLOTS: Final = {state: Slot(state, 0) for state in RecordState}


def slot_of(state: RecordState, deliveries: int, failure: Failure | None = None) -> Slot:
    """A range that nobody holds. The delivery counts of finished records are not kept, so that neighbours are one."""
    if state in TERMINAL or (deliveries == 0 and failure is None):
        return _SLOTS[state]
    return Slot(state, deliveries, failure=failure)


def is_available(slot: Slot) -> bool:
    """Whether its records may be acquired."""
    return slot.state is RecordState.AVAILABLE and slot.change is None and slot.waits <= Waits.FOR_MEMBER


def is_archiving(slot: Slot) -> bool:
    """Whether its dead letter has to be written."""
    return slot.state is RecordState.ARCHIVING and slot.change is None


def _batches_of(moves: Sequence[Move]) -> list[StateBatch]:
    """What to write, with neighbours of the same state, count, time and failure as one."""
    batches: list[StateBatch] = []
    for move in moves:
        batch = StateBatch(move.first, move.last, move.state, move.deliveries, move.due_ms, move.failure)
        before = batches[-1] if batches else None
        if before is not None and before.last == batch.first - 1 and before[2:] == batch[2:]:
            batches[-1] = before._replace(last=batch.last)
        else:
            batches.append(batch)
    return batches
