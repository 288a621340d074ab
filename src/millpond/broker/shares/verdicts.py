"""What members say about records: which they accept, release, reject or hold for longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

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


DELAY_MS_MAX: Final = 10 * 366 * 24 * 3_600_000
"""Ten years."""


class Acknowledgement(NamedTuple):
    """A member's verdict on a range: one type for all records, or one for each."""

    first: int
    last: int
    types: Sequence[int]
    delay_ms: int = 0
    """How long records that it releases are not delivered again."""
    failure: Failure | None = None
    """The member's error, for the dead letters of what it rejects or releases for the last time."""


def check_form(acknowledgements: Sequence[Acknowledgement]) -> None:
    end = -1
    for each in acknowledgements:
        first, last, types = each.first, each.last, each.types
        if not end < first <= last:
            raise Refused(ErrorCode.INVALID_REQUEST, f"offsets {first} to {last} are out of order")
        if len(types) != 1 and len(types) != last - first + 1:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{len(types)} types for offsets {first} to {last}")
        if not all(AcknowledgeType.GAP <= kind <= AcknowledgeType.RENEW for kind in types):
            raise Refused(ErrorCode.INVALID_REQUEST, f"unknown acknowledge type among {list(types)}")
        if not 0 <= each.delay_ms <= DELAY_MS_MAX:
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"a delay of {each.delay_ms} ms: give 0 to {DELAY_MS_MAX}, ten years"
            )
        end = last


def runs(acknowledgement: Acknowledgement) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """The ranges with the same type."""
    first, last, types = acknowledgement.first, acknowledgement.last, acknowledgement.types
    if len(types) == 1:
        yield first, last, AcknowledgeType(types[0])
        return
    begin = 0
    for index in range(1, len(types) + 1):
        if index == len(types) or types[index] != types[begin]:
            yield first + begin, first + index - 1, AcknowledgeType(types[begin])
            begin = index
