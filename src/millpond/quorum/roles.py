"""The roles that a replica of the quorum can have, each with just the state that it needs."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from millpond.base.values import dataclass
from millpond.quorum.messages import Fetch, FetchSnapshot, ReplicaKey, SnapshotId


@dataclass(slots=True)
class Tally:
    """Who answered a call for votes, and how; the caller's own vote is one of them."""

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
    """Knows an epoch and no leader of it; looks for one, and stands for election when none shows up in time."""

    deadline_ms: int
    look_ms: int


@dataclass(slots=True)
class Prospective:
    """Asks whether it would be elected, without raising the epoch; keeps looking for a leader meanwhile."""

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
    """When to ask those again who have not answered: what was sent to them may be lost."""


@dataclass(slots=True)
class ReplicaProgress:
    """What a leader knows about another replica in this epoch."""

    end_offset: int = -1
    high_watermark: int = -1
    """How much it knows to be committed."""
    fetched_ms: int | None = None
    caught_up_ms: int | None = None
    """When it last had all that there was."""
    fetched_before_ms: int | None = None
    """When it had fetched the last time but one: it has heard from this leader since."""
    is_new: bool = False
    new_since_ms: int = 0


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that waits for news."""

    request_id: int
    fetch: Fetch
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    epoch_start: int
    """The offset of the record that opened this epoch."""
    elected_ms: int
    begin_ms: int
    """When to call those who have not come to fetch."""
    progress: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    parked: dict[int, ParkedFetch] = field(default_factory=dict)


@dataclass(slots=True)
class Resigned:
    """Led this epoch, or may have, and will not lead it again."""

    deadline_ms: int


@dataclass(slots=True)
class Download:
    """A snapshot on its way from the leader."""

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
    """The one request that is under way; the answer to any other comes too late."""
    retry_ms: int | None = None
    """When to ask again after an answer that helped nobody."""
    cuts: int = 0
    """How often in a row the connection to the leader was closed or refused."""
    download: Download | None = None


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Resigned | Follower
