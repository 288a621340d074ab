"""The roles of a quorum replica, each with the state it needs."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from millpond.base.values import dataclass
from millpond.quorum.messages import Fetch, FetchSnapshot, ReplicaKey, SnapshotId


@dataclass(slots=True)
class Tally:
    """The responses to a call for votes, including the candidate's own vote."""

    voters_count: int
    needs_all: bool = False
    granted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    def count(self, node_id: int, granted: bool) -> None:
        (self.granted if granted else self.refused).add(node_id)

    @property
    def is_won(self) -> bool:
        return len(self.granted) > (self.voters_count - 1 if self.needs_all else self.voters_count // 2)

    @property
    def is_lost(self) -> bool:
        left = self.voters_count - len(self.refused)
        return left <= (self.voters_count - 1 if self.needs_all else self.voters_count // 2)


@dataclass(slots=True)
class Unattached:
    """Knows an epoch but not its leader; looks for one, and stands for election if none appears in time."""

    deadline_ms: int
    look_ms: int


@dataclass(slots=True)
class Prospective:
    """Asks whether it would be elected, without raising the epoch; keeps looking for a leader."""

    leader_id: int
    tally: Tally
    deadline_ms: int
    look_ms: int
    rounds: int = 1


@dataclass(slots=True)
class Candidate:
    """Has voted for itself in a new epoch, and counts that vote once it is durable."""

    tally: Tally
    vote_version: int
    deadline_ms: int
    again_ms: int
    """When to retry those who have not answered: the request may be lost."""


@dataclass(slots=True)
class ReplicaProgress:
    """What a leader knows about another replica in this epoch."""

    end_offset: int = -1
    high_watermark: int = -1
    """The high watermark it knows."""
    fetched_ms: int | None = None
    caught_up_ms: int | None = None
    """When it last had the whole log."""
    fetched_before_ms: int | None = None
    """The time of its last fetch but one: it has received a response from this leader since."""
    is_new: bool = False
    new_since_ms: int = 0


@dataclass(slots=True)
class PendingFetch:
    """A fetch that waits for new records."""

    request_id: int
    fetch: Fetch
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    epoch_start: int
    """The offset of the record that opened this epoch."""
    elected_ms: int
    begin_ms: int
    """When to notify replicas that have not fetched yet."""
    progress: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    pending_fetches: dict[int, PendingFetch] = field(default_factory=dict)


@dataclass(slots=True)
class Resigned:
    """Led this epoch, or may have, and will not lead it again."""

    deadline_ms: int


@dataclass(slots=True)
class Download:
    """A snapshot being fetched from the leader."""

    snapshot: SnapshotId
    data: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Follower:
    leader_id: int
    deadline_ms: int
    """When to give up on a leader that does not answer."""
    heard_ms: int | None = None
    """When the leader last answered."""
    asked: Fetch | FetchSnapshot | None = None
    """The request in flight; responses to any other are too late."""
    retry_ms: int | None = None
    """When to retry after an unsuccessful response."""
    cuts: int = 0
    """How many times in a row the connection to the leader was closed or refused."""
    download: Download | None = None


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Resigned | Follower
