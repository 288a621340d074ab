"""The follower side of a partition: what to fetch from the leader, and how to apply the response."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.base.ports import Buffer
from millpond.base.values import dataclass


class ReplicaLog(Protocol):
    """The part of its log that a follower uses."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int: ...

    def end_of(self, epoch: int) -> EpochEnd | None:
        """The largest leader epoch not above `epoch` that the log knows, and its end offset."""


FROM_SCRATCH: Final = EpochEnd(0, 0)
"""A follower shares nothing with the leader from this point on, whatever epochs it has. A follower that does not
know evidence floors also truncates its whole log."""


@dataclass(frozen=True, slots=True)
class FetchFrom:
    """One partition of a fetch to its leader."""

    leader_epoch: int
    offset: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The leader's response for one partition."""

    error: ErrorCode
    high_watermark: int = -1
    start_offset: int = 0
    end_offset: int = -1
    """The leader's log end offset, known only with OFFSET_OUT_OF_RANGE."""
    diverging: EpochEnd | None = None
    evidence_floor: int = -1
    """The leader's evidence floor, if the fetch offset is below it."""
    records: Buffer | None = None


@dataclass(frozen=True, slots=True)
class Append:
    records: Buffer


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop everything at and above `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Drop the whole log and restart at `offset`, the leader's log start: the two have nothing in common."""

    offset: int
    is_outdated: bool = False
    """The leader has everything in this log, or has compacted it away, and this log missed the tombstones."""


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Nothing can be done now; retry after a short while."""


Effect: TypeAlias = Append | Truncate | Restart | AskAgain


@dataclass(slots=True)
class PartitionFollower:
    """The follower side, for one leader epoch. A log is never truncated to its high watermark: only the leader
    knows."""

    leader: int
    leader_epoch: int
    log: ReplicaLog
    high_watermark: int
    asked: FetchFrom | None = None

    def fetch(self) -> FetchFrom:
        self.asked = FetchFrom(self.leader_epoch, self.log.end_offset, self.log.last_epoch)
        return self.asked

    def on_response(self, request: FetchFrom, fetched: Fetched) -> list[Effect]:
        """How to change the log. A response to anything but the last request is too late."""
        if request is not self.asked:
            return []
        self.asked = None
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return [self._out_of_range(fetched)]
        if fetched.error is not ErrorCode.NONE:
            return [AskAgain()]
        if fetched.diverging is not None:
            if fetched.evidence_floor > request.offset and fetched.diverging == FROM_SCRATCH:
                # What is left after a truncation could still hold records whose tombstone or marker is gone. Any
                # other divergence is truncated first, which keeps what was committed; the next fetch then restarts.
                return [Restart(fetched.start_offset, is_outdated=True)]
            # The high watermark stays: the next response shows whether it holds for the rest.
            return [Truncate(self._parting(fetched.diverging))]
        return [Append(fetched.records)] if fetched.records else []

    def follow_high_watermark(self, fetched: Fetched) -> None:
        """After the effects have been applied."""
        if fetched.error is ErrorCode.NONE and fetched.diverging is None:
            leaders = min(fetched.high_watermark, self.log.end_offset)
            self.high_watermark = max(self.high_watermark, leaders, self.log.start_offset)
        else:
            self.high_watermark = max(min(self.high_watermark, self.log.end_offset), self.log.start_offset)

    def _parting(self, diverging: EpochEnd) -> int:
        """Where this log and the leader's diverge, as far as one step can tell; the next may find an earlier
        offset."""
        mine = self.log.end_of(diverging.epoch)
        if mine is None:
            return self.log.start_offset
        if mine.epoch == diverging.epoch:
            return min(mine.end_offset, diverging.end_offset)
        return mine.end_offset

    def _out_of_range(self, fetched: Fetched) -> Effect:
        if 0 <= fetched.end_offset < self.log.start_offset:
            # The leader has none of these records: it is a replica that lost its own.
            return Restart(fetched.start_offset)
        if fetched.end_offset < self.log.end_offset:
            return Truncate(max(fetched.end_offset, self.log.start_offset))
        if fetched.start_offset > self.log.end_offset:
            return Restart(fetched.start_offset)
        return AskAgain()
