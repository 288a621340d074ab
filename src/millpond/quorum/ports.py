"""What the quorum needs from outside: a log, randomness, and durable election state."""

from __future__ import annotations

from typing import Protocol

from millpond.base.ids import EpochEnd
from millpond.base.values import dataclass
from millpond.quorum.messages import NO_LEADER, ReplicaKey, SnapshotId
from millpond.quorum.voters import Voter


@dataclass(frozen=True, slots=True)
class Election:
    """The durable election state of a replica: the file `quorum-state`."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted: ReplicaKey | None = None
    is_new: bool = False
    """Whether this voter began with an empty disk and may have forgotten promises: see `Replica`."""
    is_founder: bool = False
    """Whether this new voter has voted for one with an empty log: its memory goes back to before the first leader."""
    is_restored: bool = False
    """Whether this new voter was restored from a backup. It neither stands nor votes, not even with other new
    voters: backups are from different moments, and a leader elected among them would truncate what others have
    committed."""


class QuorumLog(Protocol):
    """The metadata log and its snapshots on this replica.

    Every method here sees a change at once; it survives a power cut only once `Durable` has confirmed it.
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
        """The voters in the last voters record, committed or not; None if there never was one."""

    @property
    def voters_offset(self) -> int:
        """The offset of that record; -1 if there is none, or if it is in a snapshot and so committed."""

    @property
    def voters_before(self) -> tuple[Voter, ...] | None:
        """The voters in the record before that one; None if there is none."""

    def end_of(self, epoch: int) -> EpochEnd | None:
        """The largest epoch not above `epoch` that the log knows, and its end offset; None if there is none."""

    def append_leader_change(self, epoch: int, leader_id: int) -> bool:
        """Open an epoch with a control record, so that it has a record of its own to commit.

        False if it cannot be written now: a full disk.
        """

    def append_voters(self, epoch: int, voters: tuple[Voter, ...]) -> bool:
        """Write new voters. False if they cannot be written now."""

    def append_fetched(self, records: bytes) -> bool:
        """Append the leader's records unchanged. False if they cannot be written now, or are corrupt."""

    def truncate_to(self, offset: int) -> None:
        """Drop everything at and above `offset`."""

    def read(self, offset: int) -> bytes:
        """Whole batches from `offset` on, limited to one response; empty at the end."""

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        """None if there is no such snapshot, or no longer."""

    def read_snapshot(self, snapshot: SnapshotId, position: int) -> bytes: ...

    def install_snapshot(self, snapshot: SnapshotId, data: bytes) -> bool:
        """Drop the whole log and restart at the end of this snapshot. False, without a change, if it is damaged."""


class Chance(Protocol):
    """The source of random delays."""

    def below(self, bound: int) -> int:
        """A random integer in [0, bound)."""
