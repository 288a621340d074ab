"""Which leader epoch began at which offset: how replicas find where their logs part."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.log.checkpoints import encode_epochs

NO_EPOCH = -1


class LeaderEpochs:
    """Epochs and their first offsets, both rising. `latest` is read on every append."""

    __slots__ = ("entries", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: list[tuple[int, int]] = []
        self.latest = NO_EPOCH
        for epoch, start in entries:
            self.assign(epoch, start)

    def assign(self, epoch: int, start: int) -> bool:
        """Note that `epoch` begins at offset `start`; False if that is no news."""
        if epoch <= self.latest or epoch < 0:
            return False
        # An epoch without a single record says nothing: the new one begins at the same offset.
        while self.entries and self.entries[-1][1] >= start:
            self.entries.pop()
        self.entries.append((epoch, start))
        self.latest = epoch
        return True

    def learn(self, epoch: int, offset: int) -> None:
        """A batch of `epoch` stands at `offset`. The log is the truth: what was noted otherwise goes."""
        if epoch < 0 or (epoch == self.latest and self.entries[-1][1] <= offset):
            return
        known = [each for each in self.entries if (each[0] <= epoch) == (each[1] <= offset)]
        if epoch not in (each[0] for each in known):
            known.append((epoch, offset))
        self.entries = sorted(known)
        self.latest = self.entries[-1][0]

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and the offset where it ends; (-1, -1) if it is not ours.

        Before the first known epoch the log has been deleted: then `epoch` itself ends where that one begins.
        """
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end
        largest = epoch
        for known, start in self.entries:
            if known > epoch:
                return largest, start
            largest = known
        raise AssertionError("an epoch below the latest has a later one")

    def start_of(self, epoch: int, log_end: int) -> int:
        """Where `epoch` began; the end of the log where nothing is known of it or a later one."""
        return next((start for known, start in self.entries if known >= epoch), log_end)

    def of(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written; -1 if unknown."""
        latest = NO_EPOCH
        for epoch, start in self.entries:
            if start > offset:
                break
            latest = epoch
        return latest

    def cut_end(self, end: int) -> bool:
        """Forget what begins at or after `end`; True if anything was forgotten."""
        before = len(self.entries)
        while self.entries and self.entries[-1][1] >= end:
            self.entries.pop()
        self.latest = self.entries[-1][0] if self.entries else NO_EPOCH
        return len(self.entries) != before

    def cut_start(self, start: int) -> bool:
        """Forget epochs that ended before `start`; the one that `start` lies in now begins there."""
        before = list(self.entries)
        while len(self.entries) > 1 and self.entries[1][1] <= start:
            self.entries.pop(0)
        if self.entries and self.entries[0][1] < start:
            self.entries[0] = (self.entries[0][0], start)
        return self.entries != before

    def encode(self) -> bytes:
        return encode_epochs(self.entries)
