"""An in-memory log of numbers that loses part of its unsynced entries in a power cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from struct import Struct
from uuid import UUID

from millpond.base.ids import EpochEnd
from millpond.base.named_tuple import NamedTuple
from millpond.quorum.messages import SnapshotId
from millpond.quorum.voters import Voter

_ENTRY = Struct(">iq")
LEADER_CHANGE = -1
VOTERS = -(1 << 32)
"""An entry at or below this names voters: its bits are the node ids."""
SNAPSHOT_CHUNK_BYTES = 24


class Entry(NamedTuple):
    epoch: int
    value: int


def named_voters(value: int) -> tuple[Voter, ...] | None:
    """The voters that an entry names, if any."""
    if value > VOTERS:
        return None
    bits = VOTERS - value
    return tuple(Voter(each, UUID(int=0)) for each in range(bits.bit_length()) if bits >> each & 1)


class _Content:
    """The contents of a log: the entries of a snapshot, and those after it."""

    __slots__ = ("entries", "folded", "snapshot", "start", "voters")

    def __init__(self) -> None:
        self.snapshot: SnapshotId | None = None
        self.start = 0
        self.folded: list[Entry] = []
        self.entries: list[Entry] = []
        self.voters: list[tuple[int, tuple[Voter, ...]]] = []
        """Each set of voters with its offset, including those in the snapshot."""

    def extend(self, entries: list[Entry]) -> None:
        for offset, entry in enumerate(entries, self.start + len(self.entries)):
            if (named := named_voters(entry.value)) is not None:
                self.voters.append((offset, named))
        self.entries.extend(entries)

    def begin_at(self, snapshot: SnapshotId) -> None:
        self.snapshot, self.start = snapshot, snapshot.end_offset


Change = Callable[[_Content], None]


class MemoryLog:
    """The `QuorumLog` of one simulated replica, together with its disk."""

    def __init__(self, read_entries_max: int = 8) -> None:
        self._read_entries_max = read_entries_max
        self._seen = _Content()
        self._disk = _Content()
        self._unsynced: deque[Change] = deque()

    # The disk.

    def mark(self) -> int:
        """The number of unsynced changes, which a sync that starts now makes durable."""
        return len(self._unsynced)

    @property
    def synced_end(self) -> int:
        """All entries below this offset would survive a power cut now."""
        return min(self._disk.start + len(self._disk.entries), self.end_offset) if self._unsynced else self.end_offset

    def synced(self, changes: int) -> None:
        for _ in range(min(changes, len(self._unsynced))):
            self._unsynced.popleft()(self._disk)

    def cut_power(self, random: Random) -> None:
        self.synced(random.randint(0, len(self._unsynced)))
        self._unsynced.clear()
        self._seen = _Content()
        self._seen.snapshot, self._seen.start = self._disk.snapshot, self._disk.start
        self._seen.folded = list(self._disk.folded)
        self._seen.entries = list(self._disk.entries)
        self._seen.voters = list(self._disk.voters)

    def _change(self, change: Change) -> None:
        change(self._seen)
        self._unsynced.append(change)

    # The port.

    @property
    def start_offset(self) -> int:
        return self._seen.start

    @property
    def end_offset(self) -> int:
        seen = self._seen
        return seen.start + len(seen.entries)

    @property
    def last_epoch(self) -> int:
        if self._seen.entries:
            return self._seen.entries[-1].epoch
        return self._seen.snapshot.epoch if self._seen.snapshot else 0

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self._seen.snapshot

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        return self._seen.voters[-1][1] if self._seen.voters else None

    @property
    def voters_offset(self) -> int:
        return self._seen.voters[-1][0] if self._seen.voters else -1

    @property
    def voters_before(self) -> tuple[Voter, ...] | None:
        return self._seen.voters[-2][1] if len(self._seen.voters) > 1 else None

    def append_voters(self, epoch: int, voters: tuple[Voter, ...]) -> bool:
        self.append(epoch, VOTERS - sum(1 << each.node_id for each in voters))
        return True

    def end_of(self, epoch: int) -> EpochEnd | None:
        for index in range(len(self._seen.entries) - 1, -1, -1):
            known = self._seen.entries[index].epoch
            if known <= epoch:
                return EpochEnd(known, self._seen.start + index + 1)
        if self._seen.snapshot is not None and self._seen.snapshot.epoch <= epoch:
            return EpochEnd(self._seen.snapshot.epoch, self._seen.start)
        return None

    def append_leader_change(self, epoch: int, leader_id: int) -> bool:
        self.append(epoch, LEADER_CHANGE - leader_id)
        return True

    def append(self, epoch: int, value: int) -> None:
        entry = Entry(epoch, value)
        self._change(lambda content: content.extend([entry]))

    def append_fetched(self, records: bytes) -> bool:
        entries = [Entry(*fields) for fields in _ENTRY.iter_unpack(records)]
        self._change(lambda content: content.extend(entries))
        return True

    def truncate_to(self, offset: int) -> None:
        def cut(content: _Content) -> None:
            del content.entries[max(offset - content.start, 0) :]
            while content.voters and content.voters[-1][0] >= max(offset, content.start):
                content.voters.pop()

        self._change(cut)

    def read(self, offset: int) -> bytes:
        index = offset - self._seen.start
        return b"".join(_ENTRY.pack(*entry) for entry in self._seen.entries[index : index + self._read_entries_max])

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        return len(self._seen.folded) * _ENTRY.size if snapshot == self._seen.snapshot else None

    def read_snapshot(self, snapshot: SnapshotId, position: int) -> bytes:
        data = b"".join(_ENTRY.pack(*entry) for entry in self._seen.folded)
        return data[position : position + SNAPSHOT_CHUNK_BYTES]

    def install_snapshot(self, snapshot: SnapshotId, data: bytes) -> bool:
        folded = [Entry(*fields) for fields in _ENTRY.iter_unpack(data)]

        def install(content: _Content) -> None:
            content.begin_at(snapshot)
            content.folded = list(folded)
            content.entries = []
            named = [(offset, named_voters(entry.value)) for offset, entry in enumerate(folded)]
            content.voters = [(offset, voters) for offset, voters in named if voters is not None]

        self._change(install)
        return True

    # For its owner.

    def take_snapshot(self, end_offset: int) -> None:
        """Fold everything below `end_offset`, which must be committed, into a snapshot."""

        def fold(content: _Content) -> None:
            count = end_offset - content.start
            content.folded.extend(content.entries[:count])
            content.begin_at(SnapshotId(end_offset, content.folded[-1].epoch))
            del content.entries[:count]

        self._change(fold)

    def entry(self, offset: int) -> Entry:
        """The entry at `offset`, also when a snapshot has it."""
        if offset < self._seen.start:
            return self._seen.folded[offset]
        return self._seen.entries[offset - self._seen.start]
