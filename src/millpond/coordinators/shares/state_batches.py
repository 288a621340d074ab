"""What is written down about records of a share partition: their state and delivery count, range by range."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from millpond.base.named_tuple import NamedTuple


class RecordState(IntEnum):
    """The state of a record within a share group, with its number on the wire and in records."""

    AVAILABLE = 0
    ACQUIRED = 1
    """Only in memory: a new leader finds the record available."""
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Given up, while its dead letter is not yet written. Nothing enters this state so far."""
    ARCHIVED = 4


TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""A record in one of these states is never delivered again."""


class StateBatch(NamedTuple):
    """Records from `first` to `last` that share a state and a number of deliveries."""

    first: int
    last: int
    state: RecordState
    deliveries: int
