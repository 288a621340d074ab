"""Why a group rebalanced, and what it cost: a bounded memory of its last rebalances.

It answers the question that is asked at three in the morning: who came or went, why, which partitions moved from whom
to whom, and for how long nobody read. Each rebalance is published when it is over, for the broker to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.coordinators.groups.records import prefix_of
from millpond.wire.messages import ConsumerProtocolAssignment

MOVES_MAX = 1000
"""How many moves of one rebalance are named; the rest are counted."""
ASSIGNMENTS_BYTES_MAX = 256 << 10
"""Up to which size the assignments that changed are looked into: it happens while everybody else waits."""
NOT_COUNTED = -1
CAUSES_MAX = 1000
DETAIL_LENGTH_MAX = 255
"""Of what clients say of themselves, be it a name or a reason."""

BURST_MAX = 20
"""How many rebalances of one group, one after the other, are published in full."""
PUBLISH_EVERY_MS = 1000
"""From then on one is published in this time, and says how many were left out before it."""


class Why(StrEnum):
    """What sets off a rebalance, or happens in its course."""

    JOINED = "joined"
    REJOINED = "rejoined"
    LEFT = "left"
    TIMED_OUT = "session timed out"
    DID_NOT_JOIN = "did not rejoin in time"
    DID_NOT_SYNC = "did not fetch its assignment in time"
    FENCED = "replaced by a newer instance"
    RESTARTED = "static member came back"
    SUBSCRIPTION_CHANGED = "changed its subscription"
    LEADER_ASKED = "leader asked for a new assignment"
    OVER_CAPACITY = "group is over its size limit"
    TOPICS_CHANGED = "subscribed topics changed"
    DID_NOT_REVOKE = "did not give up its partitions in time"


@dataclass(frozen=True, slots=True)
class Cause:
    why: Why
    member_id: str
    at_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    detail: str = ""
    """The client's own words."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that changed hands; None is nobody."""

    topic: str
    partition: int
    before: str | None
    after: str | None


@dataclass(slots=True)
class Rebalance:
    """One change of generation, from its first cause to the last member that fetched its assignment."""

    started_ms: int
    causes: list[Cause] = field(default_factory=list)
    generation: int | None = None
    members: int = 0
    leader: str | None = None
    protocol: str | None = None
    assigned_ms: int | None = None
    finished_ms: int | None = None
    moves: list[Move] = field(default_factory=list)
    moves_total: int = 0
    """NOT_COUNTED when the assignments were too large to look into."""
    left_out: int = 0
    """How many rebalances of the group were not published before this one: too many in too short a time."""

    @property
    def paused_ms(self) -> int | None:
        """How long partitions went unread at most; None while it lasts."""
        return None if self.finished_ms is None else self.finished_ms - self.started_ms

    def as_json(self, ahead_ms: int = 0) -> dict[str, Any]:
        """For people: with the times of the wall clock, which is `ahead_ms` of the coordinator's."""
        return {
            "started_ms": self.started_ms + ahead_ms,
            "assigned_ms": None if self.assigned_ms is None else self.assigned_ms + ahead_ms,
            "finished_ms": None if self.finished_ms is None else self.finished_ms + ahead_ms,
            "paused_ms": self.paused_ms,
            "generation": self.generation,
            "members": self.members,
            "leader": _cut(self.leader),
            "protocol": _cut(self.protocol),
            "causes": [
                {
                    "why": cause.why.value,
                    "member_id": _cut(cause.member_id),
                    "at_ms": cause.at_ms + ahead_ms,
                    "instance_id": cause.instance_id,
                    "client_id": _cut(cause.client_id),
                    "client_host": cause.client_host,
                    "detail": cause.detail,
                }
                for cause in self.causes
            ],
            "moves": [
                {
                    "topic": _cut(move.topic),
                    "partition": move.partition,
                    "before": _cut(move.before),
                    "after": _cut(move.after),
                }
                for move in self.moves
            ],
            "moves_total": self.moves_total,
            "left_out": self.left_out,
        }


class History:
    """The last rebalances of one group, oldest first; the last one may still be under way."""

    def __init__(self, length: int) -> None:
        self.rebalances: deque[Rebalance] = deque(maxlen=max(length, 1))
        self.publish: Callable[[Rebalance], None] = _tell_nobody
        """Hears of rebalances when they are over, but for a flood of them."""
        self._open: Rebalance | None = None
        self._unpublished = 0
        self._credit = BURST_MAX
        self._credited_ms = 0

    def note(self, cause: Cause) -> None:
        """Something that sets off a rebalance, or adds to the one under way."""
        rebalance = self._begun(cause.at_ms)
        if len(rebalance.causes) < CAUSES_MAX:
            rebalance.causes.append(cause)

    def remember_calm(self, cause: Cause, generation: int, members: int) -> None:
        """Something that might have set off a rebalance and did not."""
        calm = Rebalance(
            cause.at_ms,
            causes=[cause],
            generation=generation,
            members=members,
            assigned_ms=cause.at_ms,
            finished_ms=cause.at_ms,
        )
        self.rebalances.append(calm)
        self._publish(calm, cause.at_ms)

    def generation_began(self, generation: int, members: int, leader: str | None, protocol: str | None) -> None:
        if self._open:
            self._open.generation, self._open.members = generation, members
            self._open.leader, self._open.protocol = leader, protocol

    def assigned(self, before: Mapping[str, bytes], after: Mapping[str, bytes], now_ms: int) -> None:
        """The leader has shared out: assignments by member, as they were and as they are now."""
        if not self._open:
            return
        self._open.assigned_ms = now_ms
        changed = {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
        old, new = ({each: said[each] for each in said if each in changed} for said in (before, after))
        if sum(map(len, (*old.values(), *new.values()))) > ASSIGNMENTS_BYTES_MAX:
            self._open.moves, self._open.moves_total = [], NOT_COUNTED
            return
        moves = list(moves_between(owners(old), owners(new)))
        self._open.moves, self._open.moves_total = moves[:MOVES_MAX], len(moves)

    def finished(self, now_ms: int) -> None:
        """The last member has fetched its assignment, or none is left."""
        if self._open:
            self._open.finished_ms = now_ms
            over, self._open = self._open, None
            self._publish(over, now_ms)

    def _publish(self, over: Rebalance, now_ms: int) -> None:
        """A client that joins and leaves without end must not fill the disk with it."""
        earned, rest_ms = divmod(now_ms - self._credited_ms, PUBLISH_EVERY_MS)
        self._credit = min(self._credit + earned, BURST_MAX)
        self._credited_ms = now_ms - rest_ms
        if not self._credit:
            self._unpublished += 1
            return
        self._credit -= 1
        over.left_out, self._unpublished = self._unpublished, 0
        self.publish(over)

    def _begun(self, now_ms: int) -> Rebalance:
        if self._open is None:
            self._open = Rebalance(now_ms)
            self.rebalances.append(self._open)
        return self._open


def _cut(name: str | None) -> str | None:
    """What clients call themselves and each other may be as long as a message."""
    return name and name[:DETAIL_LENGTH_MAX]


def _tell_nobody(_: Rebalance) -> None: ...


def owners(assignments: Mapping[str, bytes]) -> dict[TopicPartition, str]:
    """Who reads what. Bytes that are no consumer's assignment say nothing: other kinds of groups have their own."""
    readers: dict[TopicPartition, str] = {}
    for member_id, data in assignments.items():
        for topic, partition in assigned_partitions(data):
            readers[TopicPartition(topic, partition)] = member_id
    return readers


def assigned_partitions(data: bytes) -> Iterable[tuple[str, int]]:
    if not data:
        return ()
    try:
        assignment = prefix_of(ConsumerProtocolAssignment, data)
    except MalformedMessage:
        return ()
    return [(each.topic, partition) for each in assignment.assigned_partitions for partition in each.partitions]


def moves_between(before: Mapping[TopicPartition, str], after: Mapping[TopicPartition, str]) -> Iterable[Move]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield Move(name.topic, name.partition, old, new)
