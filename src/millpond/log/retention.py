"""Which segments have expired, and what time it is for that purpose.

A segment exceeds `retention.ms` when that long has passed since the later of its largest record timestamp and its
last append. So a future timestamp keeps data longer, and an old timestamp (a backfill) does not delete what has just
arrived. Nor does a clock that jumps: `RetentionClock` accepts a jump forward only once the clock has kept its new
pace for a while, and moves the known append times along.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from millpond.base.values import dataclass
from millpond.log.limits import LogLimits
from millpond.log.segment import NO_TIMESTAMP, Segment
from millpond.log.segments import Segments

SETTLE_MS: Final = 10 * 60 * 1000
JUMP_MS: Final = 5_000
BACKFILL_MS: Final = 60_000


def expired_segments(
    segments: Segments,
    limits: LogLimits,
    now_ms: int,
    *,
    start_offset: int,
    upper_offset: int,
    held: Collection[int],
) -> list[Segment]:
    """The oldest segments that may be removed: deleted from the front, too old, or beyond the size limit.

    Nothing at or above `upper_offset` (uncommitted), and nothing that a compaction is reading.
    """
    left_bytes = segments.size_bytes
    expired: list[Segment] = []
    for segment in segments:
        if not segment.size or segment.next_offset > upper_offset or segment.base_offset in held:
            break
        left_bytes -= segment.size
        if not (segment.next_offset <= start_offset or _is_past_retention(segment, limits, left_bytes, now_ms)):
            break
        expired.append(segment)
    return expired


def _is_past_retention(segment: Segment, limits: LogLimits, left_bytes: int, now_ms: int) -> bool:
    if not limits.cleanup_delete:
        return False
    if 0 <= limits.retention_bytes <= left_bytes:
        return True
    return limits.retention_ms >= 0 and now_ms - segment_time(segment, now_ms) > limits.retention_ms


def segment_time(segment: Segment, now_ms: int) -> int:
    """The time from which the segment's age counts."""
    moment = max(segment.max_timestamp, segment.appended_ms)
    if moment == NO_TIMESTAMP:
        # The time of its last append is unknown: its age counts from now.
        moment = segment.appended_ms = now_ms
    return moment


@dataclass(slots=True)
class _Anchor:
    wall_ms: int
    monotonic_ms: int

    def expected(self, monotonic_ms: int) -> int:
        return self.wall_ms + monotonic_ms - self.monotonic_ms


class RetentionClock:
    """The wall clock, without its jumps forward.

    A jump back counts at once, as it only keeps data longer. After a jump forward the old pace continues until the
    clock has kept the new one for `settle_ms`.
    """

    def __init__(self, settle_ms: int = SETTLE_MS) -> None:
        self.settle_ms = settle_ms
        self._trusted: _Anchor | None = None
        self._candidate: _Anchor | None = None

    def observe(self, wall_ms: int, monotonic_ms: int) -> tuple[int, int]:
        """The time to use, and by how much the clock was found to have jumped (usually 0)."""
        if self._trusted is None:
            self._trusted = _Anchor(wall_ms, monotonic_ms)
            return wall_ms, 0
        expected = self._trusted.expected(monotonic_ms)
        if wall_ms <= expected + JUMP_MS:
            # In step (small corrections are followed), or a jump back.
            self._candidate = None
            self._trusted = _Anchor(wall_ms, monotonic_ms)
            leap = wall_ms - expected if wall_ms < expected - JUMP_MS else 0
            return wall_ms, leap
        return self._after_leap(wall_ms, monotonic_ms, expected)

    def _after_leap(self, wall_ms: int, monotonic_ms: int, expected: int) -> tuple[int, int]:
        candidate = self._candidate
        if candidate is None or abs(candidate.expected(monotonic_ms) - wall_ms) > JUMP_MS:
            self._candidate = candidate = _Anchor(wall_ms, monotonic_ms)
        if monotonic_ms - candidate.monotonic_ms < self.settle_ms:
            return expected, 0
        self._trusted, self._candidate = _Anchor(wall_ms, monotonic_ms), None
        return wall_ms, wall_ms - expected


def move_append_times(segments: Iterable[Segment], leap_ms: int, now_ms: int) -> None:
    """Shift known append times after a clock jump, but never into the future."""
    for segment in segments:
        if segment.appended_ms != NO_TIMESTAMP:
            segment.appended_ms = min(segment.appended_ms + max(leap_ms, 0), now_ms)


def is_append_time_needed(segment: Segment) -> bool:
    """Whether a segment's known append time is much later than its records' timestamps.

    Only then does it matter and cannot be read from the log again, so it is checkpointed. Reads no file: a segment
    whose timestamps are unknown has its append time from an earlier checkpoint, which is still valid.
    """
    max_timestamp = segment.known_max_timestamp
    return bool(segment.size) and (max_timestamp is None or segment.appended_ms > max_timestamp + BACKFILL_MS)
