"""What the quorum needs from outside: a log, chance, and a memory of elections that survives."""

from __future__ import annotations

from typing import Protocol

from millpond.base.ids import EpochEnd
from millpond.base.values import dataclass
from millpond.quorum.messages import NO_LEADER, ReplicaKey, SnapshotId
from millpond.quorum.voters import Voter


@dataclass(frozen=True, slots=True)
class Election:
    """What a replica must remember about elections, whatever happens to it: the file `quorum-state`."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted: ReplicaKey | None = None
    is_new: bool = False
    """Whether this voter began with an empty disk and may have forgotten what it once promised: see `Replica`."""
    is_founder: bool = False
    """Whether this new voter has voted for one with an empty log: its memory goes back to before the first leader."""
    is_restored: bool = False
    """Whether this new voter was restored from a backup. It neither stands nor votes, not even with other new voters:
    backups are of different moments, and a leader elected among them would cut what others have committed."""


class QuorumLog(Protocol):
    """The metadata log and its snapshots on this replica.

    A change is seen at once by every method here, and survives a power cut only once `Durable` has said so.
    """

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins with."""

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    @property
    def voters(self) -> tuple[Voter, ...] | None:
        """Whom the last record about the voters names, committed or not; None where there never was one."""

    @property
    def voters_offset(self) -> int:
        """The offset of that record; -1 where there is none, or a snapshot has it, and so it is committed."""

    @property
    def voters_before(self) -> tuple[Voter, ...] | None:
        """Whom the record before that one names; None where there is none."""

    def end_of(self, epoch: int) -> EpochEnd | None:
        """The largest epoch not above `epoch` that the log knows, and where it ends; None when it knows none."""

    def append_leader_change(self, epoch: int, leader_id: int) -> bool:
        """Open an epoch: one control record, so that an epoch has something of its own to commit.

        False where it cannot be written now: a full disk.
        """

    def append_voters(self, epoch: int, voters: tuple[Voter, ...]) -> bool:
        """Name other voters. False where that cannot be written now."""

    def append_fetched(self, records: bytes) -> bool:
        """Take what the leader sent, as it is. False where it cannot be written now, or is not what was sent."""

    def truncate_to(self, offset: int) -> None:
        """Drop everything at and above `offset`."""

    def read(self, offset: int) -> bytes:
        """Whole batches from `offset` on, as many as one response should have; empty at the end."""

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """None where there is no such snapshot (any more)."""

    def read_snapshot(self, snapshot: SnapshotId, position: int) -> bytes: ...

    def install_snapshot(self, snapshot: SnapshotId, data: bytes) -> bool:
        """Drop the whole log, and begin again at the end of this snapshot. False, and no change, if it is damaged."""


class Chance(Protocol):
    """Where random delays come from."""

    def below(self, bound: int) -> int:
        """A whole number from 0 up to but not including `bound`."""
