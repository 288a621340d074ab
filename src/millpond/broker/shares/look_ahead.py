"""What a share window learns from records that were looked at: they enter it before anybody acquires them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from millpond.broker.shares.next_records import Fact
from millpond.broker.shares.slots import Slot, Waits, slot_of
from millpond.coordinators.shares.state_batches import RecordState

if TYPE_CHECKING:
    from millpond.broker.shares.next_records import Upcoming
    from millpond.broker.shares.window_settings import ShareSettings

KNOWN = Slot(RecordState.AVAILABLE, 0, waits=Waits.FOR_MEMBER)


class Records(Protocol):
    """What it needs of `window.ShareWindow`."""

    settings: ShareSettings

    @property
    def upcoming(self) -> Upcoming: ...

    @property
    def end_offset(self) -> int: ...

    def append(self, last: int, slot: Slot) -> None: ...


def learn(
    window: Records,
    first: int,
    last: int,
    batches: Sequence[tuple[int, int]],
    facts: Sequence[Fact],
    wall_ms: int,
) -> None:
    """Everything from `first` to `last` was looked at.

    `batches` are its batches that members may see. `facts` are in order; a record without one has neither key,
    priority nor time. Without an order the window learns only as far as the last delayed record: what follows is
    acquired straight from the log. If too many records are delayed, it learns less than was looked at.
    """
    settings, upcoming = window.settings, window.upcoming
    if first > window.end_offset or (settings.is_ordered and first > upcoming.looked):
        # It was read for an earlier window, or before the group asked for an order.
        return
    position = max(first, upcoming.looked)
    for fact in facts:
        if not position <= fact.offset <= last:
            continue
        is_delayed = fact.due_ms > wall_ms
        if not is_delayed and not settings.is_ordered:
            continue
        _know(window, position, fact.offset - 1, batches)
        if is_delayed and fact.offset >= window.end_offset and upcoming.delays.count >= settings.delay_max_records:
            upcoming.looked = fact.offset
            return
        if fact.offset >= window.end_offset:
            upcoming.note(fact)
            waits = upcoming.waits_as(fact, wall_ms)
            window.append(fact.offset, KNOWN._replace(waits=waits))
            if waits is Waits.FOR_TIME:
                upcoming.delays.add(fact.offset, fact.offset, fact.due_ms, by_header=True)
        else:
            upcoming.learn_again(fact, wall_ms)
        position = fact.offset + 1
    if settings.is_ordered:
        _know(window, position, last, batches)
    upcoming.looked = max(upcoming.looked, last + 1)


def _know(window: Records, first: int, last: int, batches: Sequence[tuple[int, int]]) -> None:
    """The window has all records up to `last`; none of these has anything to say."""
    window.upcoming.forget_keys(first, last)
    for base, batch_last in batches:
        begin, end = max(base, window.end_offset), min(batch_last, last)
        if begin > end:
            continue
        if begin > window.end_offset:
            window.append(begin - 1, slot_of(RecordState.ARCHIVED, 0))
        window.append(end, KNOWN)
    if last >= window.end_offset:
        window.append(last, slot_of(RecordState.ARCHIVED, 0))
