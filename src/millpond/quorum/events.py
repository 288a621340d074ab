"""The events of a quorum replica."""

from __future__ import annotations

from typing import TypeAlias

from millpond.base.values import dataclass
from millpond.quorum.messages import ReplicaKey, Request, Response
from millpond.quorum.ready import Ask, Durable
from millpond.quorum.voters import Voter


@dataclass(frozen=True, slots=True)
class Asked:
    """A request arrived; `request_id` identifies it in the reply."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """The response to one of our requests, or None if there will be none."""

    ask: Ask
    response: Response | None
    is_cut: bool = False
    """Without a response: the connection was closed or refused, which a live but busy node does not do."""


@dataclass(frozen=True, slots=True)
class Hung:
    """The sender of this request has disconnected; its reply is no longer needed."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Time:
    """Time has passed, and nothing else."""

    late_ms: int = 0
    """How long this node itself was stalled: in that time it could not have received anything."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The owner of the leader's log appended to it."""


@dataclass(frozen=True, slots=True)
class NewVoters:
    """The leader's owner requests these voters, and the leader has accepted."""

    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True)
class Poll:
    """The leader's owner checks whether these replicas still follow: answer their pending fetches."""

    replicas: frozenset[ReplicaKey]


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand over: resign if leading, and propose successors."""


Event: TypeAlias = Asked | Answered | Hung | Time | Appended | NewVoters | Poll | Stop | Durable
