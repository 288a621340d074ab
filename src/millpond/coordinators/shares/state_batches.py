"""What is written down about records of a share partition: their state and delivery count, range by range."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from millpond.base.named_tuple import NamedTuple


class RecordState(IntEnum):
    """The state of a record within a share group, with its number on the wire and in records."""

    AVAILABLE = 0
    ACQUIRED = 1
    """Only in memory: a new leader finds the record available."""
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Given up, while its dead letter is not yet written. No member receives it, but it is not finished."""
    ARCHIVED = 4


NO_TIME: Final = -1

TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""A record in one of these states is never delivered again."""


class Failure(NamedTuple):
    """Why a record was given up, for its dead letter."""

    error_type: str
    error_message: str


class StateBatch(NamedTuple):
    """Records from `first` to `last` that share a state and a number of deliveries."""

    first: int
    last: int
    state: RecordState
    deliveries: int
    available_at_ms: int = NO_TIME
    """Until then, by the wall clock, an available record is delayed."""
    failure: Failure | None = None
    """Only of records whose dead letter is not yet written."""


def to_wire(batch: StateBatch) -> dict[str, Any]:
    """The fields of a state batch in messages and records."""
    error_type, error_message = batch.failure or ("", "")
    return {
        "first_offset": batch.first,
        "last_offset": batch.last,
        "delivery_state": int(batch.state),
        "delivery_count": batch.deliveries,
        "available_at_ms": batch.available_at_ms,
        "error_type": error_type,
        "error_message": error_message,
    }


def from_wire(batch: Any) -> StateBatch:
    has_error = batch.error_type or batch.error_message
    return StateBatch(
        batch.first_offset,
        batch.last_offset,
        RecordState(batch.delivery_state),
        batch.delivery_count,
        batch.available_at_ms,
        Failure(batch.error_type, batch.error_message) if has_error else None,
    )
