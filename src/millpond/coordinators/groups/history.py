"""Why a group rebalanced, and what it cost: a bounded history of its rebalances.

It answers the questions of an operator on call: which members joined or left, why, which partitions moved, and how
long they went unread. Each rebalance is published when it is over, for the broker to keep.

Clients that join and leave endlessly must not fill the memory. All histories of a node share a part of it; when that
is used up, a group drops its oldest rebalances, and keeps little more of the last one than its existence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from millpond.base.errors import MalformedMessage
from millpond.base.ids import TopicPartition
from millpond.coordinators.groups.memory import (
    CAUSE_BYTES,
    MOVE_BYTES,
    REBALANCE_BYTES,
    GroupMemory,
    text_bytes,
)
from millpond.coordinators.groups.records import prefix_of
from millpond.wire.messages import ConsumerProtocolAssignment

MOVES_MAX = 1000
"""How many moves of one rebalance are listed; the rest are counted."""
ASSIGNMENTS_BYTES_MAX = 256 << 10
"""Size limit of changed assignments that are analysed: the analysis blocks the event loop."""
NOT_COUNTED = -1
CAUSES_MAX = 1000
CAUSES_MIN = 4
"""This many causes of a group's last rebalance are kept even without memory for them."""
DETAIL_LENGTH_MAX = 255
"""The limit for names and reasons that clients choose."""

BURST_MAX = 20
"""How many consecutive rebalances of one group are published in full."""
PUBLISH_EVERY_MS = 1000
"""After that one is published per interval, with the number left out before it."""


class Why(StrEnum):
    """What triggers a rebalance, or happens during one."""

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
    """The client's own text."""

    @property
    def kept_bytes(self) -> int:
        texts = (self.member_id, self.instance_id, self.client_id, self.client_host, self.detail)
        return CAUSE_BYTES + sum(map(text_bytes, texts))


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that changed owners; None is no owner."""

    topic: str
    partition: int
    before: str | None
    after: str | None

    @property
    def kept_bytes(self) -> int:
        return MOVE_BYTES + text_bytes(self.topic) + text_bytes(self.before) + text_bytes(self.after)


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
    """NOT_COUNTED if the assignments were too large to analyse."""
    left_out: int = 0
    """How many rebalances of the group before this one were not published, because there were too many."""
    kept_bytes: int = field(default=0, compare=False, repr=False)
    """The memory that is counted for it."""

    @property
    def paused_ms(self) -> int | None:
        """How long partitions went unread at most; None while it lasts."""
        return None if self.finished_ms is None else self.finished_ms - self.started_ms

    def as_json(self, ahead_ms: int = 0) -> dict[str, Any]:
        """For display: in wall clock time, which is `ahead_ms` ahead of coordinator time."""
        return {
            "started_ms": self.started_ms + ahead_ms,
            "assigned_ms": None if self.assigned_ms is None else self.assigned_ms + ahead_ms,
            "finished_ms": None if self.finished_ms is None else self.finished_ms + ahead_ms,
            "paused_ms": self.paused_ms,
            "generation": self.generation,
            "members": self.members,
            "leader": self.leader,
            "protocol": self.protocol,
            "causes": [
                {
                    "why": cause.why.value,
                    "member_id": cause.member_id,
                    "at_ms": cause.at_ms + ahead_ms,
                    "instance_id": cause.instance_id,
                    "client_id": cause.client_id,
                    "client_host": cause.client_host,
                    "detail": cause.detail,
                }
                for cause in self.causes
            ],
            "moves": [
                {
                    "topic": move.topic,
                    "partition": move.partition,
                    "before": move.before,
                    "after": move.after,
                }
                for move in self.moves
            ],
            "moves_total": self.moves_total,
            "left_out": self.left_out,
        }


class History:
    """The rebalances of one group, oldest first; the last one may be in progress."""

    def __init__(self, length: int, memory: GroupMemory | None = None) -> None:
        self.rebalances: deque[Rebalance] = deque()
        self._length = max(length, 1)
        self._memory = memory or GroupMemory()
        self.publish: Callable[[Rebalance], None] = _discard
        """Called with finished rebalances, at a limited rate."""
        self._open: Rebalance | None = None
        self._unpublished = 0
        self._credit = BURST_MAX
        self._credited_ms = 0

    def note(self, cause: Cause) -> None:
        """Record a cause, which starts a rebalance or adds to the current one."""
        rebalance = self._begun(cause.at_ms)
        cause = _short(cause)
        count = len(rebalance.causes)
        if count < CAUSES_MAX and (self._keep(rebalance, cause.kept_bytes) or count < CAUSES_MIN):
            rebalance.causes.append(cause)

    def remember_calm(self, cause: Cause, generation: int, members: int) -> None:
        """Record something that might have triggered a rebalance and did not."""
        calm = Rebalance(
            cause.at_ms,
            causes=[_short(cause)],
            generation=generation,
            members=members,
            assigned_ms=cause.at_ms,
            finished_ms=cause.at_ms,
        )
        self._remember(calm)
        self._publish(calm, cause.at_ms)

    def generation_began(self, generation: int, members: int, leader: str | None, protocol: str | None) -> None:
        if self._open:
            self._open.generation, self._open.members = generation, members
            self._open.leader, self._open.protocol = _cut(leader), _cut(protocol)

    def assigned(self, before: Mapping[str, bytes], after: Mapping[str, bytes], now_ms: int) -> None:
        """Record the assignments by member, before and after."""
        if not self._open:
            return
        self._open.assigned_ms = now_ms
        changed = {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
        old, new = (
            {each: assignment[each] for each in assignment if each in changed} for assignment in (before, after)
        )
        if sum(map(len, (*old.values(), *new.values()))) > ASSIGNMENTS_BYTES_MAX:
            self._set_moves(self._open, [])
            self._open.moves_total = NOT_COUNTED
            return
        moves = list(moves_between(owners(old), owners(new)))
        self._set_moves(self._open, moves)
        self._open.moves_total = len(moves)

    def finished(self, now_ms: int) -> None:
        """The last member has fetched its assignment, or none is left."""
        if self._open:
            self._open.finished_ms = now_ms
            over, self._open = self._open, None
            self._publish(over, now_ms)

    def _publish(self, over: Rebalance, now_ms: int) -> None:
        """A client that joins and leaves endlessly must not fill the disk."""
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
            self._remember(self._open)
        return self._open

    # Memory.

    def release(self) -> None:
        """Free its memory when the group is removed."""
        self._memory.history_bytes -= sum(each.kept_bytes for each in self.rebalances)
        self._memory = GroupMemory()

    def _remember(self, rebalance: Rebalance) -> None:
        while len(self.rebalances) >= self._length:
            self._forget_oldest()
        self.rebalances.append(rebalance)
        self._keep(rebalance, REBALANCE_BYTES + sum(each.kept_bytes for each in rebalance.causes))

    def _keep(self, rebalance: Rebalance, more_bytes: int) -> bool:
        """Whether there is room for this much more, if necessary in place of older rebalances."""
        while not self._memory.has_room_for_history(more_bytes):
            if self.rebalances[0] is rebalance:
                return False
            self._forget_oldest()
        self._memory.history_bytes += more_bytes
        rebalance.kept_bytes += more_bytes
        return True

    def _set_moves(self, rebalance: Rebalance, moves: Iterable[Move]) -> None:
        before_bytes = sum(each.kept_bytes for each in rebalance.moves)
        self._memory.history_bytes -= before_bytes
        rebalance.kept_bytes -= before_bytes
        rebalance.moves = [
            Move(each.topic[:DETAIL_LENGTH_MAX], each.partition, _cut(each.before), _cut(each.after))
            for each in islice(moves, MOVES_MAX)
        ]
        if not self._keep(rebalance, sum(each.kept_bytes for each in rebalance.moves)):
            rebalance.moves = []

    def _forget_oldest(self) -> None:
        gone = self.rebalances.popleft()
        self._memory.history_bytes -= gone.kept_bytes
        if gone is self._open:
            self._open = None


def _cut(name: str | None) -> str | None:
    """Client-chosen names may be as long as a message."""
    return name and name[:DETAIL_LENGTH_MAX]


def _short(cause: Cause) -> Cause:
    if len(cause.member_id) <= DETAIL_LENGTH_MAX and len(cause.client_id) <= DETAIL_LENGTH_MAX:
        return cause
    return replace(
        cause, member_id=cause.member_id[:DETAIL_LENGTH_MAX], client_id=cause.client_id[:DETAIL_LENGTH_MAX]
    )


def _discard(_: Rebalance) -> None: ...


def owners(assignments: Mapping[str, bytes]) -> dict[TopicPartition, str]:
    """The owner of each partition. Bytes that are not a consumer assignment are ignored: other group types have
    their own."""
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
