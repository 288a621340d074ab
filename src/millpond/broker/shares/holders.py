"""The members that hold records of a share partition, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.sessions import member_of

if TYPE_CHECKING:
    from millpond.broker.shares.window import ShareWindow

HOLDERS_MAX: Final = 100
"""Members that a summary names, those whose locks expire first."""


class Holder(NamedTuple):
    """A member that holds records."""

    member_id: str
    records: int
    lock_left_ms: int
    """Until the first of its locks expires."""


def holders_of(window: ShareWindow, now_ms: int) -> list[Holder]:
    """The members that hold records. A member with several sessions is one holder."""
    found: dict[str, Holder] = {}
    for session, records, deadline_ms in window.holders():
        member_id, left_ms = member_of(session), max(deadline_ms - now_ms, 0)
        other = found.get(member_id)
        if other is not None:
            records, left_ms = records + other.records, min(left_ms, other.lock_left_ms)
        found[member_id] = Holder(member_id, records, left_ms)
    return sorted(found.values(), key=lambda each: (each.lock_left_ms, each.member_id))[:HOLDERS_MAX]
