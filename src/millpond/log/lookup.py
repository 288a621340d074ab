"""Finding records by time: headers lead to a batch, and only where they cannot tell the record is it unpacked.

A look-up may meet segments that were never opened since the start, and batches made to be costly. So it is made on
the loop, runs on a worker with files of its own, and is finished on the loop. What it unpacks is bounded: of a batch
with more records or bytes than any client makes by default, the answer is the batch and not the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest

from millpond.base.errors import ErrorCode, MalformedMessage, Refused, RemoteError
from millpond.base.named_tuple import NamedTuple
from millpond.log.scan import Damaged
from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.wire.batch import BatchHeader
from millpond.wire.records import batch_keys

UNPACKED_RECORDS_MAX = 100_000
UNPACKED_BYTES_MAX = 16 << 20
UNPACKED_BATCHES_MAX = 16
"""Of how many batches one look-up may find that their headers promised a time that their records do not have."""

_TIME_END = 1 << 63


class TimedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class _View(NamedTuple):
    """A segment of the log, and what the loop knows of it."""

    origin: Segment
    next_offset: int
    size: int
    max_timestamp: int | None
    position: int | None
    """Where to begin, if the segment's indexes are in memory."""


class TimeLookup:
    """One look-up in one log: `run` on any thread, then `finish` on the loop."""

    def __init__(self, segments: Sequence[Segment], start_offset: int, upper_offset: int, timestamp: int) -> None:
        self._all = segments
        self._start_offset = start_offset
        self._upper_offset = upper_offset
        self._timestamp = timestamp
        self._unpacked = 0
        self._result: TimedOffset | None = None
        self._fault: Refused | None = None
        self._learned: dict[Segment, tuple[int, int]] = {}
        self._views = [self._view(each) for each in segments if each.next_offset > start_offset and each.size]

    def _view(self, segment: Segment) -> _View:
        known = segment.known_max_timestamp
        return _View(segment, segment.next_offset, segment.size, known, self._position_in_memory(segment))

    def _position_in_memory(self, segment: Segment) -> int | None:
        return segment.position_before_time(self._timestamp, self._start_offset)

    def run(self) -> None:
        """Read what must be read. What goes wrong is kept for `finish`."""
        try:
            self._result = self._search()
        except OSError as fault:
            code = ErrorCode.CORRUPT_MESSAGE if isinstance(fault, Damaged) else ErrorCode.KAFKA_STORAGE_ERROR
            self._fault = Refused(code, str(fault))
        except RemoteError as fault:
            self._fault = Refused(ErrorCode.CORRUPT_MESSAGE, f"a batch cannot be unpacked: {fault}")
        except Refused as refusal:
            self._fault = refusal

    def _search(self) -> TimedOffset | None:
        """The first record whose timestamp is not older, below the upper offset."""
        for view in self._views:
            if view.origin.base_offset >= self._upper_offset:
                return None
            if view.max_timestamp is not None and view.max_timestamp < self._timestamp:
                continue
            with self._opened(view) as segment:
                if self._max_timestamp(view, segment) < self._timestamp:
                    continue
                for position, header in segment.batches_from_timestamp(
                    self._timestamp, self._start_offset, view.position
                ):
                    first = self._first_in(segment, position, header)
                    if first is not None:
                        return first if first.offset < self._upper_offset else None
        return None

    def finish(self) -> TimedOffset | None:
        """The answer; Refused if there is none. Ask `is_stale` before."""
        for segment, known in self._learned.items():
            segment.learn_max_timestamp(*known)
        if self._fault is not None:
            raise self._fault
        return self._result

    def is_stale(self, segments: Sequence[Segment]) -> bool:
        """Whether files were exchanged or cut while they were read: then it has to be done again."""
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

    def _first_in(self, segment: Segment, position: int, header: BatchHeader) -> TimedOffset | None:
        """The first record of the batch that is not older than the time asked for."""
        if not header.record_count:
            # Compaction may have emptied a batch without changing what its header says of times.
            return None
        first_ms = header.max_timestamp if header.is_append_time else header.base_timestamp
        if _is_whole(header) and header.base_offset >= self._start_offset and first_ms >= self._timestamp:
            return TimedOffset(first_ms, header.base_offset, header.leader_epoch)
        for offset, timestamp in self._times(segment, position, header):
            if timestamp >= self._timestamp and offset >= self._start_offset:
                return TimedOffset(timestamp, offset, header.leader_epoch)
        return None

    def _times(self, segment: Segment, position: int, header: BatchHeader) -> list[tuple[int, int]]:
        """Offset and timestamp of every record; of a batch that is too costly to unpack, those of the batch."""
        if header.record_count > UNPACKED_RECORDS_MAX:
            return [(max(header.base_offset, self._start_offset), header.max_timestamp)]
        self._unpacked += 1
        if self._unpacked > UNPACKED_BATCHES_MAX:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, "too many batches lack the times that their headers promise")
        data = segment.file.read_at(position, header.size)
        try:
            keys = batch_keys(data, limit_bytes=max(UNPACKED_BYTES_MAX, header.size))
        except Refused as refusal:
            if refusal.code != ErrorCode.MESSAGE_TOO_LARGE:
                raise
            return [(max(header.base_offset, self._start_offset), header.max_timestamp)]
        if header.is_append_time:
            return [(header.base_offset + delta, header.max_timestamp) for delta, _, _, _ in keys]
        times = [(header.base_offset + delta, header.base_timestamp + time) for delta, _, _, time in keys]
        if any(not -_TIME_END <= time < _TIME_END for _, time in times):
            raise MalformedMessage("a timestamp is beyond 64 bits")
        return times


class LatestLookup(TimeLookup):
    """The first record with the largest timestamp of all."""

    def __init__(self, segments: Sequence[Segment], start_offset: int) -> None:
        super().__init__(segments, start_offset, 0, NO_TIMESTAMP + 1)

    def _position_in_memory(self, segment: Segment) -> int | None:
        known = segment.known_max_timestamp
        return None if known is None else segment.position_before_time(known, self._start_offset)

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
        # The first batch that promises the largest time of all mostly keeps that promise.
        for at, header in segment.batches_from_timestamp(max_timestamp, self._start_offset, position):
            latest = self._latest_of(segment, at, header)
            if latest is not None and latest.timestamp == max_timestamp:
                return latest
            break
        # The record that had it was deleted from the front or compacted away: by headers, until none promises more.
        promises = (
            (header.max_timestamp, -at, header)
            for at, header in segment.batches_from(self._start_offset, position=0)
            if header.record_count and header.max_timestamp > NO_TIMESTAMP
        )
        best: TimedOffset | None = None
        for promised, below, header in nlargest(UNPACKED_BATCHES_MAX - 1, promises):
            if best is not None and promised < best.timestamp:
                break
            best = _later(best, self._latest_of(segment, -below, header))
        return best

    def _latest_of(self, segment: Segment, position: int, header: BatchHeader) -> TimedOffset | None:
        """The first record of the batch with its largest timestamp."""
        if not header.record_count:
            return None
        if header.record_count == 1 and _is_whole(header) and header.base_offset >= self._start_offset:
            return TimedOffset(header.max_timestamp, header.base_offset, header.leader_epoch)
        live = [
            (timestamp, -offset)
            for offset, timestamp in self._times(segment, position, header)
            if offset >= self._start_offset
        ]
        if not live:
            return None
        timestamp, below = max(live)
        return TimedOffset(timestamp, -below, header.leader_epoch) if timestamp > NO_TIMESTAMP else None


def _is_whole(header: BatchHeader) -> bool:
    """Whether no record was compacted away, and the header's first time is that of the first record."""
    return header.record_count == header.last_offset_delta + 1 and header.delete_horizon_ms is None


def _later(one: TimedOffset | None, other: TimedOffset | None) -> TimedOffset | None:
    """The one with the larger timestamp, the first if both have it."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda each: (each.timestamp, -each.offset))
