"""Finding records by timestamp. Headers select the batch, which is unpacked only if they do not determine the record.

A lookup may touch segments that have not been opened since startup, and batches crafted to be expensive. So it is
made on the loop, runs on a worker with its own file handles, and is finished on the loop. Unpacking is bounded: for a
batch with more records or bytes than any client writes by default, and once the request's budget is spent, the answer
is the batch rather than the record. Only producers with wrong timestamps make a lookup expensive: a correct header
ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest

from millpond.base.errors import ErrorCode, Refused, RemoteError
from millpond.base.named_tuple import NamedTuple
from millpond.base.ports import Buffer
from millpond.log.scan import Damaged
from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.wire.batch import BatchHeader
from millpond.wire.kernel import first_not_older, latest_record
from millpond.wire.records import records_section

UNPACKED_RECORDS_MAX = 100_000
UNPACKED_BYTES_MAX = 16 << 20
UNPACKED_BATCHES_MAX = 16
"""How many batches of one lookup may lack the timestamp that their headers declare."""

WORK_BASE = 100_000
WORK_PER_LOOKUP = 2_000
"""The budget of a request, and its extra budget per partition. A unit takes about a microsecond: one batch header, 64
records or 1 KiB of unpacked batch."""

_RECORDS_PER_UNIT = 64
_BYTES_PER_UNIT = 1 << 10
_HEADERS_AT_ONCE = 256

_LYING = "too many batches lack the timestamps that their headers declare"
_TIME_END = 1 << 63


class LookupBudget:
    """The shared cost limit for the lookups of one request, and whether the client still waits for them.

    Checked on the worker, between two batches.
    """

    __slots__ = ("_is_wanted", "left")

    def __init__(self, lookups: int = 1, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self.left = WORK_BASE + WORK_PER_LOOKUP * lookups
        self._is_wanted = is_wanted

    def add(self, lookups: int) -> None:
        """Add the budget for this many more lookups."""
        self.left += WORK_PER_LOOKUP * lookups

    def spend(self, work: int) -> None:
        """Count the work; Refused if the client is gone."""
        self.left -= work
        if not self._is_wanted():
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the client has disconnected")


class TimedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class _View(NamedTuple):
    """A segment of the log, with what the loop knows about it."""

    origin: Segment
    next_offset: int
    size: int
    max_timestamp: int | None
    position: int | None
    """Where to begin, if the segment's indexes are in memory."""


class TimeLookup:
    """One lookup in one log: `run` on any thread, then `finish` on the loop."""

    def __init__(
        self,
        segments: Sequence[Segment],
        start_offset: int,
        upper_offset: int,
        timestamp: int,
        budget: LookupBudget | None = None,
    ) -> None:
        self._all = segments
        self._budget = budget or LookupBudget()
        self._start_offset = start_offset
        self._upper_offset = upper_offset
        self._timestamp = timestamp
        self._unpacked = 0
        self._result: TimedOffset | None = None
        self._fault: Refused | None = None
        self._learned: dict[Segment, tuple[int, int]] = {}
        self._views = [self._view(each) for each in segments if each.next_offset > start_offset and each.size]

    def _view(self, segment: Segment) -> _View:
        max_timestamp = segment.known_max_timestamp
        return _View(segment, segment.next_offset, segment.size, max_timestamp, self._position_in_memory(segment))

    def _position_in_memory(self, segment: Segment) -> int | None:
        return segment.position_before_time(self._timestamp, self._start_offset)

    def run(self) -> None:
        """Read what is needed. Errors are kept for `finish`."""
        try:
            self._result = self._search()
        except OSError as fault:
            code = ErrorCode.CORRUPT_MESSAGE if isinstance(fault, Damaged) else ErrorCode.KAFKA_STORAGE_ERROR
            self._fault = Refused(code, str(fault))
        except RemoteError as fault:
            self._fault = Refused(ErrorCode.CORRUPT_MESSAGE, f"a batch cannot be decompressed: {fault}")
        except Refused as refusal:
            self._fault = refusal

    def _search(self) -> TimedOffset | None:
        """The first record below the upper offset whose timestamp is not older than the requested one."""
        for view in self._views:
            if view.origin.base_offset >= self._upper_offset:
                return None
            if view.max_timestamp is not None and view.max_timestamp < self._timestamp:
                continue
            with self._opened(view) as segment:
                if self._max_timestamp(view, segment) < self._timestamp:
                    continue
                for position, header in self._promising(segment, self._timestamp, view.position):
                    first = self._first_in(segment, position, header)
                    if first is not None:
                        return first if first.offset < self._upper_offset else None
        return None

    def finish(self) -> TimedOffset | None:
        """The result; Refused if there is none. Check `is_stale` first."""
        for segment, max_timestamp in self._learned.items():
            segment.learn_max_timestamp(*max_timestamp)
        if self._fault is not None:
            raise self._fault
        return self._result

    def is_stale(self, segments: Sequence[Segment]) -> bool:
        """Whether files were replaced or truncated while they were read: then the lookup must be repeated."""
        there = {id(segment) for segment in segments}
        return any(id(view.origin) not in there or view.origin.size < view.size for view in self._views)

    # Segments and batches

    @contextmanager
    def _opened(self, view: _View) -> Iterator[Segment]:
        segment = view.origin.reader(view.next_offset, view.size)
        try:
            yield segment
        finally:
            segment.close()

    def _max_timestamp(self, view: _View, segment: Segment) -> int:
        if view.max_timestamp is not None:
            return view.max_timestamp
        self._learned[view.origin] = segment.max_timestamp, segment.max_timestamp_offset
        return segment.max_timestamp

    def _promising(self, segment: Segment, timestamp: int, position: int | None) -> Iterator[tuple[int, BatchHeader]]:
        """The batches whose headers declare a record of this time or later."""
        for at, header in self._walked(segment.batches_from_time(timestamp, self._start_offset, position)):
            if header.max_timestamp >= timestamp:
                yield at, header

    def _walked(self, batches: Iterator[tuple[int, BatchHeader]]) -> Iterator[tuple[int, BatchHeader]]:
        for number, each in enumerate(batches, 1):
            yield each
            if number % _HEADERS_AT_ONCE == 0:
                self._budget.spend(_HEADERS_AT_ONCE)
                if self._budget.left < 0:
                    raise Refused(ErrorCode.CORRUPT_MESSAGE, _LYING)

    def _first_in(self, segment: Segment, position: int, header: BatchHeader) -> TimedOffset | None:
        """The first record of the batch that is not older than the requested timestamp."""
        if not header.record_count:
            # Compaction may have emptied the batch without changing the timestamps in its header.
            return None
        first_ms = header.max_timestamp if header.is_append_time else header.base_timestamp
        if _is_whole(header) and header.base_offset >= self._start_offset and first_ms >= self._timestamp:
            return TimedOffset(first_ms, header.base_offset, header.leader_epoch)
        payload = self._unpacked_records(segment, position, header)
        if payload is None:
            return self._whole(header)
        from_delta = max(self._start_offset - header.base_offset, 0)
        base, timestamp = header.base_timestamp, self._timestamp
        if header.is_append_time:
            # With append time, record timestamps mean nothing: the first record that exists has the batch's
            # timestamp.
            base, timestamp = 0, -_TIME_END
        first = first_not_older(payload, header.record_count, base, timestamp, from_delta)
        return None if first is None else _timed(header, *first)

    def _whole(self, header: BatchHeader) -> TimedOffset:
        """The result for a batch that is too expensive to unpack."""
        return TimedOffset(header.max_timestamp, max(header.base_offset, self._start_offset), header.leader_epoch)

    def _unpacked_records(self, segment: Segment, position: int, header: BatchHeader) -> Buffer | None:
        """The records of the batch; None if it is too expensive to unpack."""
        if header.record_count > UNPACKED_RECORDS_MAX or self._budget.left < 0:
            return None
        self._unpacked += 1
        if self._unpacked > UNPACKED_BATCHES_MAX:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, _LYING)
        self._budget.spend(header.record_count // _RECORDS_PER_UNIT)
        data = segment.file.read_at(position, header.size)
        try:
            payload = records_section(data, 0, header, limit_bytes=max(UNPACKED_BYTES_MAX, header.size))
        except Refused as refusal:
            if refusal.code != ErrorCode.MESSAGE_TOO_LARGE:
                raise
            self._budget.spend(UNPACKED_BYTES_MAX // _BYTES_PER_UNIT)
            return None
        self._budget.spend(len(payload) // _BYTES_PER_UNIT)
        return payload


class LatestLookup(TimeLookup):
    """The first record with the largest timestamp in the log."""

    def __init__(self, segments: Sequence[Segment], start_offset: int, budget: LookupBudget | None = None) -> None:
        super().__init__(segments, start_offset, 0, NO_TIMESTAMP + 1, budget)

    def _position_in_memory(self, segment: Segment) -> int | None:
        max_timestamp = segment.known_max_timestamp
        return None if max_timestamp is None else segment.position_before_time(max_timestamp, self._start_offset)

    def _search(self) -> TimedOffset | None:
        times: dict[Segment, int] = {}
        for view in self._views:
            if view.max_timestamp is not None:
                times[view.origin] = view.max_timestamp
                continue
            with self._opened(view) as segment:
                times[view.origin] = self._max_timestamp(view, segment)
        best: TimedOffset | None = None
        for view in sorted(self._views, key=lambda view: -times[view.origin]):
            if best is not None and times[view.origin] < best.timestamp:
                break
            with self._opened(view) as segment:
                latest = self._latest_in(segment, times[view.origin], view.position)
            best = _later(best, latest)
        return best

    def _latest_in(self, segment: Segment, max_timestamp: int, position: int | None) -> TimedOffset | None:
        # The first batch that declares the largest timestamp usually has it.
        for at, header in self._promising(segment, max_timestamp, position):
            latest = self._latest_of(segment, at, header)
            if latest is not None and latest.timestamp == max_timestamp:
                return latest
            break
        # The record that had it was deleted or compacted away: search by headers until none declares a larger one.
        promises = (
            (header.max_timestamp, -at, header)
            for at, header in self._walked(segment.batches_from(self._start_offset, position=0))
            if header.record_count and header.max_timestamp > NO_TIMESTAMP
        )
        best: TimedOffset | None = None
        for promised, below, header in nlargest(UNPACKED_BATCHES_MAX - 1, promises):
            if best is not None and promised < best.timestamp:
                break
            best = _later(best, self._latest_of(segment, -below, header))
        return best

    def _latest_of(self, segment: Segment, position: int, header: BatchHeader) -> TimedOffset | None:
        """The first record of the batch with the batch's largest timestamp."""
        if not header.record_count:
            return None
        if header.record_count == 1 and _is_whole(header) and header.base_offset >= self._start_offset:
            return TimedOffset(header.max_timestamp, header.base_offset, header.leader_epoch)
        payload = self._unpacked_records(segment, position, header)
        if payload is None:
            return self._whole(header)
        from_delta = max(self._start_offset - header.base_offset, 0)
        if header.is_append_time:
            first = first_not_older(payload, header.record_count, 0, -_TIME_END, from_delta)
            return None if first is None else _timed(header, *first)
        latest = latest_record(payload, header.record_count, header.base_timestamp, from_delta)
        return None if latest is None or latest[1] <= NO_TIMESTAMP else _timed(header, *latest)


def _timed(header: BatchHeader, offset_delta: int, timestamp: int) -> TimedOffset:
    own_ms = header.max_timestamp if header.is_append_time else timestamp
    return TimedOffset(own_ms, header.base_offset + offset_delta, header.leader_epoch)


def _is_whole(header: BatchHeader) -> bool:
    """Whether no record was compacted away, and the header's base timestamp is that of the first record."""
    return header.record_count == header.last_offset_delta + 1 and header.delete_horizon_ms is None


def _later(one: TimedOffset | None, other: TimedOffset | None) -> TimedOffset | None:
    """The one with the larger timestamp; the first if they are equal."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda each: (each.timestamp, -each.offset))
