"""Looking at records before they are delivered: at once if they are few, on a worker if they are many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.broker.shares.record_facts import Wanted, batch_facts, read_facts, wanted_by

if TYPE_CHECKING:
    from millpond.base.ports import Clock, FileRange, Workers
    from millpond.broker.shares.log_reads import BatchRead, LogRead
    from millpond.broker.shares.next_records import Fact
    from millpond.broker.shares.window import ShareWindow

INLINE_BYTES_MAX: Final = 32 << 10
INLINE_RECORDS_MAX: Final = 500
INLINE_DECOMPRESSED_MAX: Final = 256 << 10
"""More than this takes a worker."""
RECORDS_MAX: Final = 5_000
"""One look takes no further batch once it has this many records."""
FACTS_AT_ONCE: Final = 500
"""The window learns this many facts in one turn of the loop; each takes up to 10 microseconds."""


class Lookout:
    """Looks for one window, at one read after the other."""

    def __init__(self, clock: Clock, workers: Workers) -> None:
        self._clock = clock
        self._workers = workers
        self.is_busy = False
        """The window does not know yet what was read, so that nothing can be acquired."""

    def look(self, window: ShareWindow, read: LogRead) -> Later[bool] | None:
        """Let the window learn what was read, as far as its group asks. None if that is done; otherwise it ends with
        whether the log could be read. Until then the read must not be released. Refused if it cannot be read."""
        wanted = wanted_by(window.settings)
        settings, records_max = window.settings, RECORDS_MAX
        if not any(wanted) or (settings.is_ordered and not read.is_ahead):
            return None
        if settings.is_ordered:
            records_max = min(records_max, settings.look_ahead_records - window.upcoming.ahead_count)
        batches, last = _some(read, records_max)
        if not batches:
            window.learn(read.first, last, read.bounds, (), self._clock.wall_ms())
            return None
        parts = [each.range for each in batches]
        try:
            facts = _facts_at_once(batches, wanted)
        except OSError as fault:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault
        if facts is not None:
            window.learn(read.first, last, read.bounds, facts, self._clock.wall_ms())
            return None
        self.is_busy = True
        return self._look_on_worker(parts, wanted).chain(partial(self._learn, window, read, last, wanted))

    def _look_on_worker(self, parts: Sequence[FileRange], wanted: Wanted) -> Later[list[Fact] | None]:
        return self._workers.run(partial(read_facts, parts, wanted)).recover(OSError, _unreadable)

    def _learn(
        self, window: ShareWindow, read: LogRead, last: int, wanted: Wanted, facts: list[Fact] | None
    ) -> Later[bool]:
        """Learn in slices."""
        learned: Later[bool] = Later()

        def end(is_readable: bool) -> None:
            self.is_busy = False
            learned.finish(is_readable)

        def go_on(begin: int, found: list[Fact]) -> None:
            following = begin + FACTS_AT_ONCE
            is_last = following >= len(found)
            until = last if is_last else found[following].offset - 1
            if wanted == wanted_by(window.settings):
                window.learn(read.first, until, read.bounds, found[begin:following], self._clock.wall_ms())
            if is_last or window.upcoming.looked <= until:
                end(True)
            else:
                self._clock.call_soon(partial(go_on, following, found))

        if facts is None:
            end(False)
        else:
            go_on(0, facts)
        return learned


def _some(read: LogRead, records_max: int) -> tuple[list[BatchRead], int]:
    """The batches to look at now, and the offset up to which the log is known then."""
    taken: list[BatchRead] = []
    count = 0
    for each in read.batches:
        if not each.is_unlooked:
            continue
        if taken and count >= records_max:
            return taken, each.first - 1
        taken.append(each)
        count += each.record_count
    return taken, read.last


def _facts_at_once(batches: Sequence[BatchRead], wanted: Wanted) -> list[Fact] | None:
    """None if it would take too long."""
    size = sum(each.range.length for each in batches)
    if size > INLINE_BYTES_MAX or sum(each.record_count for each in batches) > INLINE_RECORDS_MAX:
        return None
    facts: list[Fact] = []
    for each in batches:
        data = each.range.file.read_at(each.range.position, each.range.length)
        try:
            facts += batch_facts(data, wanted, INLINE_DECOMPRESSED_MAX)
        except Refused:
            return None
    return facts


def _unreadable(_: OSError) -> None: ...
