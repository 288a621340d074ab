"""How many records of a window are in which state, and what has happened to them since it was loaded."""

from __future__ import annotations

from typing import assert_never

from millpond.base.values import dataclass
from millpond.broker.shares.slots import Cause


@dataclass(slots=True)
class Totals:
    """Counted once written, record by record. A record that is delivered twice counts twice."""

    delivered: int = 0
    accepted: int = 0
    released: int = 0
    """By members, or because their sessions ended."""
    rejected: int = 0
    expired: int = 0
    """Locks that ran out."""

    def include(self, other: Totals) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add(self, cause: Cause, count: int) -> None:
        """A change was written."""
        match cause:
            case Cause.ACCEPTED:
                self.accepted += count
            case Cause.RELEASED:
                self.released += count
            case Cause.REJECTED:
                self.rejected += count
            case Cause.EXPIRED:
                self.expired += count
            case Cause.GAP | Cause.LETTER:
                pass
            case _:
                assert_never(cause)


@dataclass(frozen=True, slots=True)
class WindowCounts:
    available: int
    """Also those that wait for an earlier record with their key."""
    acquired: int
    """Also those whose release is being written."""
    delayed: int
    archiving: int
    """Given up; their dead letters are not yet written."""
    finished: int
    """Also those whose end is being written."""
    next_due_ms: int
    """When the first delayed record falls due, by the wall clock; -1 if none is delayed."""
    delivered: int
    accepted: int
    released: int
    rejected: int
    expired: int
