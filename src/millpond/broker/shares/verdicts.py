"""What members say about records: which they accept, release, reject or hold for longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

from millpond.base.errors import ErrorCode, Refused
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.shares.state_batches import Failure


class AcknowledgeType(IntEnum):
    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """A member's verdict on a range: one type for all records, or one for each."""

    first: int
    last: int
    types: Sequence[int]
    failure: Failure | None = None
    """The member's error, for the dead letters of what it rejects or releases for the last time."""


def check_form(acknowledgements: Sequence[Acknowledgement]) -> None:
    end = -1
    for first, last, types, *_ in acknowledgements:
        if not end < first <= last:
            raise Refused(ErrorCode.INVALID_REQUEST, f"offsets {first} to {last} are out of order")
        if len(types) != 1 and len(types) != last - first + 1:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{len(types)} types for offsets {first} to {last}")
        if not all(AcknowledgeType.GAP <= each <= AcknowledgeType.RENEW for each in types):
            raise Refused(ErrorCode.INVALID_REQUEST, f"unknown acknowledge type among {list(types)}")
        end = last


def runs(acknowledgement: Acknowledgement) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """The ranges with the same type."""
    first, last, types, *_ = acknowledgement
    if len(types) == 1:
        yield first, last, AcknowledgeType(types[0])
        return
    begin = 0
    for index in range(1, len(types) + 1):
        if index == len(types) or types[index] != types[begin]:
            yield first + begin, first + index - 1, AcknowledgeType(types[begin])
            begin = index
