"""The state of ranges in a share window, and changes of it that are to be written."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.locks import Lock
from millpond.coordinators.shares.state_batches import TERMINAL, RecordState, StateBatch


class Slot(NamedTuple):
    """The state of a range. While `change` is pending, the state and deliveries that it will have."""

    state: RecordState
    deliveries: int
    lock: Lock | None = None
    change: Change | None = None


class Cause(IntEnum):
    """Why a range changes."""

    GAP = 0
    ACCEPTED = 1
    RELEASED = 2
    REJECTED = 3
    EXPIRED = 4


class Move(NamedTuple):
    """A range of a change, as it was before, and as it will be."""

    first: int
    last: int
    before: Slot
    state: RecordState
    deliveries: int
    cause: Cause


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


def slot_of(state: RecordState, deliveries: int) -> Slot:
    """A range that nobody holds. The delivery counts of finished records are not kept, so that neighbours are one."""
    return _SLOTS[state] if deliveries == 0 or state in TERMINAL else Slot(state, deliveries)


def is_available(slot: Slot) -> bool:
    return slot.state is RecordState.AVAILABLE and slot.change is None


def _batches_of(moves: Sequence[Move]) -> list[StateBatch]:
    """What to write, with neighbours of the same state and count as one."""
    batches: list[StateBatch] = []
    for first, last, _, state, deliveries, _ in moves:
        before = batches[-1] if batches else None
        if before is not None and (before.last, before.state, before.deliveries) == (first - 1, state, deliveries):
            batches[-1] = before._replace(last=last)
        else:
            batches.append(StateBatch(first, last, state, deliveries))
    return batches
