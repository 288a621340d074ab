"""One acquisition: how many records of which batches a member gets, and in which ranges."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from millpond.base.named_tuple import NamedTuple
from millpond.broker.shares.locks import Lock

if TYPE_CHECKING:
    from millpond.broker.shares.next_records import Upcoming
    from millpond.broker.shares.slots import Slot
    from millpond.broker.shares.window_settings import ShareSettings

RANGES_AT_ONCE: Final = 300
"""One acquisition takes no further range once it has so many that were available before, one by one."""
BATCH_RECORDS_MAX: Final = 10_000
"""New records of one batch that an acquisition takes at most. A compressed batch of a hundred bytes can claim to have
two billion, each of which a member may release by itself."""


class AcquireMode(IntEnum):
    BATCH_OPTIMIZED = 0
    """Whole batches of the log: the last one may exceed the limit of records, by up to `BATCH_RECORDS_MAX`."""
    RECORD_LIMIT = 1


class Acquired(NamedTuple):
    """Records that a member received, with the number of their deliveries, this one included."""

    first: int
    last: int
    deliveries: int


class Records(Protocol):
    """What it needs of `window.ShareWindow`."""

    settings: ShareSettings

    @property
    def upcoming(self) -> Upcoming: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def hold(self, first: int, last: int, before: Slot, lock: Lock) -> None:
        """Available records are acquired."""
        ...

    def hold_new(self, last: int, lock: Lock) -> None:
        """The records from the end offset up to `last` are acquired."""
        ...


class Acquisition:
    """The records that one call of `acquire` has taken so far."""

    def __init__(
        self,
        window: Records,
        member_id: str,
        deadline_ms: int,
        max_records: int,
        batch_size: int,
        mode: AcquireMode,
    ) -> None:
        self.ranges: list[Acquired] = []
        self.locks: list[Lock] = []
        self.count = 0
        """How many records."""
        self.is_done = max_records <= 0
        self._window = window
        self._settings = window.settings
        self._member_id = member_id
        self._deadline_ms = deadline_ms
        self._left = max_records
        self._batch_size = batch_size
        self._has_record_limit = mode is AcquireMode.RECORD_LIMIT
        self._lock: Lock | None = None
        self.priority: int | None = None
        """Of the records that come next; others are left."""
        self._taken_again = 0
        """How many ranges."""

    def take_batch(self, first: int, last: int) -> None:
        """Take what is available of one batch of the log."""
        is_split_here = not self._has_record_limit
        for begin, end, slot in self._window.upcoming.runs(first, last, self.priority):
            if self.is_done:
                return
            self._take_again(begin, end, slot, is_split_here)
            is_split_here = False
        if not self.is_done and last >= self._window.end_offset:
            self._take_new(last, is_split_here)
        self.is_done = self.is_done or self._left <= 0

    def _take_again(self, first: int, last: int, slot: Slot, is_split_here: bool) -> None:
        size, deliveries = last - first + 1, slot.deliveries
        if slot.waits:
            # It was looked at, and is acquired for the first time.
            room = self._settings.in_flight_max - self._window.in_flight
            if room <= 0:
                return
            size = min(size, room if self._has_record_limit else BATCH_RECORDS_MAX)
        if deliveries >= self._settings.throttle_from:
            if self.ranges:
                self.is_done = True
                return
            is_last_delivery = deliveries >= self._settings.delivery_count_limit - 1
            size = 1 if is_last_delivery else max(1, size >> (deliveries - self._settings.throttle_from + 1))
            self.is_done = True
        if self._has_record_limit:
            size = min(size, self._left)
        end = first + size - 1
        self._window.hold(first, end, slot, self._lock_for(first, end))
        self._took(first, end, deliveries + 1, is_split_here)
        self._taken_again += 1
        if self._taken_again == RANGES_AT_ONCE:
            self.is_done = True

    def _take_new(self, last: int, is_split_here: bool) -> None:
        first = self._window.end_offset
        room = self._settings.in_flight_max - self._window.in_flight
        if room <= 0:
            self.is_done = True
            return
        most = min(room, self._left) if self._has_record_limit else BATCH_RECORDS_MAX
        end = min(last, first + most - 1)
        self._window.hold_new(end, self._lock_for(first, end))
        self._took(first, end, 1, is_split_here)
        self.is_done = self.is_done or end < last

    def _lock_for(self, first: int, last: int) -> Lock:
        """The lock of the range before, if this one continues it, or a new one."""
        if self._lock is not None and self._lock.last == first - 1:
            self._lock.last = last
            self._lock.count += last - first + 1
        else:
            self._lock = Lock(self._member_id, first, last, self._deadline_ms)
            self.locks.append(self._lock)
        return self._lock

    def _took(self, first: int, last: int, deliveries: int, is_split_here: bool) -> None:
        self._left -= last - first + 1
        self.count += last - first + 1
        if self._has_record_limit and self._left == 0:
            self.is_done = True
        before = self.ranges[-1] if self.ranges else None
        if (
            before is not None
            and (before.last, before.deliveries) == (first - 1, deliveries)
            and not (is_split_here and first - before.first >= self._batch_size)
        ):
            self.ranges[-1] = before._replace(last=last)
        else:
            self.ranges.append(Acquired(first, last, deliveries))
