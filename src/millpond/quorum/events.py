"""What can happen to a replica of the quorum."""

from __future__ import annotations

from typing import TypeAlias

from millpond.base.values import dataclass
from millpond.quorum.messages import ReplicaKey, Request, Response
from millpond.quorum.ready import Ask, Durable
from millpond.quorum.voters import Voter


@dataclass(frozen=True, slots=True)
class Asked:
    """A request came in; `request_id` names it in the reply."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """The response to one of our own requests, or None when there will be none."""

    ask: Ask
    response: Response | None
    is_cut: bool = False
    """Without a response: the connection was closed or refused, which a node that lives and is busy does not do."""


@dataclass(frozen=True, slots=True)
class Hung:
    """Whoever sent this request has gone; nobody waits for its reply."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Time:
    """Nothing but time has passed."""

    late_ms: int = 0
    """How long this node itself stood still: in that time it would have heard nobody."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The owner of the log wrote to it, as only the leader's may."""


@dataclass(frozen=True, slots=True)
class NewVoters:
    """The leader's owner wants these voters, and the leader had no objection."""

    voters: tuple[Voter, ...]


@dataclass(frozen=True, slots=True)
class Poll:
    """The leader's owner wants to know whether these replicas still follow: answer their fetches that wait."""

    replicas: frozenset[ReplicaKey]


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand over: resign if leading, and tell the others who should follow."""


Event: TypeAlias = Asked | Answered | Hung | Time | Appended | NewVoters | Poll | Stop | Durable
