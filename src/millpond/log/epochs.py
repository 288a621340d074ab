"""The leader epoch history: the start offset of each epoch. Replicas use it to find where their logs diverge."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.log.checkpoints import encode_epochs

NO_EPOCH = -1


class LeaderEpochs:
    """Epochs and their start offsets, both rising. `latest` is read on every append."""

    __slots__ = ("entries", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: list[tuple[int, int]] = []
        self.latest = NO_EPOCH
        for epoch, start in entries:
            self.assign(epoch, start)

    def assign(self, epoch: int, start: int) -> bool:
        """Record that `epoch` begins at offset `start`; False if that was known."""
        if epoch <= self.latest or epoch < 0:
            return False
        # An epoch without records is dropped: the new one begins at the same offset.
        while self.entries and self.entries[-1][1] >= start:
            self.entries.pop()
        self.entries.append((epoch, start))
        self.latest = epoch
        return True

    def learn(self, epoch: int, offset: int) -> None:
        """Record a batch of `epoch` at `offset`. The log is authoritative: entries that contradict it are dropped."""
        if epoch < 0 or (epoch == self.latest and self.entries[-1][1] <= offset):
            return
        entries = [each for each in self.entries if (each[0] <= epoch) == (each[1] <= offset)]
        if epoch not in (each[0] for each in entries):
            entries.append((epoch, offset))
        self.entries = sorted(entries)
        self.latest = self.entries[-1][0]

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and its end offset; (-1, -1) if there is none.

        Records before the first known epoch were deleted: an earlier `epoch` ends where the first known one begins.
        """
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end
        largest = epoch
        for entry_epoch, start in self.entries:
            if entry_epoch > epoch:
                return largest, start
            largest = entry_epoch
        raise AssertionError("an epoch below the latest has a later one")

    def start_of(self, epoch: int, log_end: int) -> int:
        """The start offset of `epoch`; the log end if neither it nor a later one is known."""
        return next((start for entry_epoch, start in self.entries if entry_epoch >= epoch), log_end)

    def of(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1 if unknown."""
        latest = NO_EPOCH
        for epoch, start in self.entries:
            if start > offset:
                break
            latest = epoch
        return latest

    def cut_end(self, end: int) -> bool:
        """Drop epochs that begin at or after `end`; whether any were dropped."""
        before = len(self.entries)
        while self.entries and self.entries[-1][1] >= end:
            self.entries.pop()
        self.latest = self.entries[-1][0] if self.entries else NO_EPOCH
        return len(self.entries) != before

    def cut_start(self, start: int) -> bool:
        """Drop epochs that ended before `start`; the epoch that holds `start` now begins there."""
        before = list(self.entries)
        while len(self.entries) > 1 and self.entries[1][1] <= start:
            self.entries.pop(0)
        if self.entries and self.entries[0][1] < start:
            self.entries[0] = (self.entries[0][0], start)
        return self.entries != before

    def encode(self) -> bytes:
        return encode_epochs(self.entries)
