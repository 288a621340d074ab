"""The state of one share partition, as records and requests change it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.shares.range_map import RangeMap
from millpond.coordinators.shares.state_batches import NO_TIME, TERMINAL, Failure, RecordState, StateBatch

NO_OFFSET = -1
"""The start offset of a group that has not read the partition yet, and in a write that does not change it."""

UNKNOWN_COUNT: Final = -1
COUNT_MAX: Final = (1 << 31) - 1


def on_wire(complete_count: int) -> int:
    """The number of finished records as messages have it: unknown if it does not fit."""
    return complete_count if complete_count <= COUNT_MAX else UNKNOWN_COUNT


class Recorded(NamedTuple):
    state: RecordState
    deliveries: int = 0
    available_at_ms: int = NO_TIME
    failure: Failure | None = None


class ShareState:
    """Epochs, start offset and state batches. What is before the start offset is forgotten."""

    __slots__ = (
        "_complete_count",
        "_ranges",
        "batches_written",
        "leader_epoch",
        "snapshot_batches",
        "snapshot_epoch",
        "snapshot_ms",
        "snapshot_offset",
        "start_offset",
        "state_epoch",
        "updates",
    )

    def __init__(
        self,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        batches: Sequence[StateBatch] = (),
        *,
        snapshot_epoch: int = 0,
    ) -> None:
        self.state_epoch = state_epoch
        """Rises whenever the state is initialised again: it fences leaders that still have the state before."""
        self.leader_epoch = leader_epoch
        """The highest leader epoch of the partition that has read or written the state."""
        self.start_offset = start_offset
        self.snapshot_epoch = snapshot_epoch
        self.snapshot_offset = 0
        """Where the snapshot is in the log: everything before it is superseded."""
        self.snapshot_ms = 0
        self.updates = 0
        """The number of records since the snapshot."""
        self.batches_written = 0
        """The number of state batches in these records."""
        self.snapshot_batches = len(batches)
        """The number of state batches in the snapshot."""
        self._ranges: RangeMap[Recorded | None] = RangeMap(max(start_offset, 0))
        self._complete_count: int | None = None
        """As counted since the last change."""
        self._apply(batches)

    @property
    def range_count(self) -> int:
        """At least the number of state batches."""
        return len(self._ranges)

    def batches(self) -> list[StateBatch]:
        """In order, with neighbours of the same state as one; offsets between them have no state."""
        ranges = self._ranges
        return [
            StateBatch(first, last, *recorded)
            for first, last, recorded in ranges.ranges(ranges.start, ranges.end - 1)
            if recorded is not None
        ]

    def complete_count(self) -> int:
        """The number of finished records from the start offset on."""
        if self._complete_count is None:
            ranges = self._ranges.ranges(self._ranges.start, self._ranges.end - 1)
            self._complete_count = sum(
                last - first + 1 for first, last, each in ranges if each and each.state in TERMINAL
            )
        return self._complete_count

    def merge(self, leader_epoch: int, start_offset: int, batches: Sequence[StateBatch]) -> None:
        """Later batches override earlier ones. Neither the start offset nor the leader epoch ever goes back."""
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        self._complete_count = None
        if start_offset > self.start_offset:
            self.start_offset = start_offset
            if start_offset > self._ranges.start:
                self._ranges.drop_before(start_offset)
        self._apply(batches)

    def merged(self, leader_epoch: int, start_offset: int, batches: Sequence[StateBatch]) -> ShareState:
        """A copy with these changes."""
        copy = ShareState(self.state_epoch, self.leader_epoch, self.start_offset, snapshot_epoch=self.snapshot_epoch)
        copy._ranges = self._ranges.copy()
        copy.merge(leader_epoch, start_offset, batches)
        return copy

    def _apply(self, batches: Iterable[StateBatch]) -> None:
        ranges = self._ranges
        for batch in batches:
            first, last = max(batch.first, ranges.start), batch.last
            if first > last:
                continue
            # How often a finished record was delivered no longer matters, and without it neighbours are one range.
            recorded = Recorded(batch.state) if batch.state in TERMINAL else Recorded(*batch[2:])
            if first > ranges.end:
                ranges.append(first - 1, None)
            if first < ranges.end:
                ranges.assign(first, min(last, ranges.end - 1), recorded)
            if last >= ranges.end:
                ranges.append(last, recorded)
