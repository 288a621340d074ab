"""The messages between quorum replicas: one request and one response per API of the protocol."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.ids import EpochEnd
from millpond.base.named_tuple import NamedTuple
from millpond.base.values import dataclass

NO_LEADER = -1


class ReplicaKey(NamedTuple):
    """One replica on one disk. A wiped disk has another directory id, so it is a different replica."""

    node_id: int
    directory_id: UUID


class SnapshotId(NamedTuple):
    """All records below `end_offset`, the last of which was written in `epoch`."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote (52). With `pre_vote` the epoch is not raised and nothing is promised."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    end_offset: int
    pre_vote: bool
    is_new: bool = False
    """Whether the candidate is a new voter, which needs the votes of all."""


@dataclass(frozen=True, slots=True)
class BeginQuorumEpoch:
    """BeginQuorumEpoch (53): the sender leads this epoch; fetch from it."""

    epoch: int
    leader_id: int
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class EndQuorumEpoch:
    """EndQuorumEpoch (54): the sender has resigned; the first of `successors` should stand at once."""

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch (1) of the metadata log. Its offset acknowledges everything below."""

    epoch: int
    replica: ReplicaKey
    offset: int
    last_epoch: int
    high_watermark: int
    wait_ms: int
    is_new: bool = False
    """Whether the sender is a new voter: what it has does not count yet."""


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """FetchSnapshot (59): the bytes of a snapshot from a position on."""

    epoch: int
    replica: ReplicaKey
    snapshot: SnapshotId
    position: int


Request: TypeAlias = Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot


@dataclass(frozen=True, slots=True)
class VoteResponse:
    error: ErrorCode
    epoch: int
    leader_id: int
    granted: bool = False


@dataclass(frozen=True, slots=True)
class EpochResponse:
    """The response to BeginQuorumEpoch and EndQuorumEpoch."""

    error: ErrorCode
    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """At most one of `diverging`, `snapshot` and `records` is set."""

    error: ErrorCode
    epoch: int
    leader_id: int
    high_watermark: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None
    records: bytes | None = None
    is_confirmed: bool = False
    """For a new voter: a majority of the others has followed this leader since it joined. If it has everything
    that is committed here, it cannot have promised anything else."""


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    error: ErrorCode
    epoch: int
    leader_id: int
    size: int = 0
    position: int = 0
    data: bytes = b""


Response: TypeAlias = VoteResponse | EpochResponse | FetchResponse | FetchSnapshotResponse
