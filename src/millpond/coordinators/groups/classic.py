"""A group of the classic protocol: members join, the group leader computes the assignment, members fetch their part.

Members in memory run ahead of the log. A record is written when a generation has its assignment, and when a group has
become empty; its `replay` is the only transition to `Stable` and to `Empty`. Everything in between (joined members,
pending requests, the next generation) is lost with the node: the members join again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.coordinators.groups.classic_size import said_bytes
from millpond.coordinators.groups.group import CONSUMER_PROTOCOL
from millpond.coordinators.groups.history import History
from millpond.coordinators.groups.members import Member, Protocols, member_from_record
from millpond.coordinators.groups.memory import (
    ASSIGNMENT_BYTES,
    PROMISED_ID_BYTES,
    GroupMemory,
    names_bytes,
    text_bytes,
)
from millpond.coordinators.groups.offsets import Committed
from millpond.coordinators.groups.records import group_record, subscribed_topics
from millpond.coordinators.shard import CoordinatorRecord
from millpond.wire.messages import GroupMetadataValue


class State(StrEnum):
    """State names as tools show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


ALLOWED: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.PREPARING, State.STABLE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset(),
}
"""The transitions of a group. A group that is being loaded takes the state of its last record."""

assert ALLOWED.keys() == set(State)

CAN_REBALANCE: Final = frozenset(state for state, then in ALLOWED.items() if State.PREPARING in then)

SUBSCRIBED_NAMES_MAX: Final = 50_000
"""Limit on topic names parsed from the members' subscriptions, with equal lists counted once: parsing blocks the
event loop."""
SUBSCRIPTIONS_COMPARED_MAX: Final = 16
"""A subscription is compared with at most this many parsed ones."""


class ClassicGroup:
    """The members of one group and their state; `join`, `sync` and `leave` have the transitions."""

    type_name: Final = "classic"

    def __init__(self, group_id: str, history_length: int = 100, memory: GroupMemory | None = None) -> None:
        self.group_id = group_id
        self.memory = memory or GroupMemory()
        self.kept_bytes = 0
        self.record_bytes = 0
        """The largest size that its record can have with its members' metadata and assignments."""
        self.loaded_bytes = 0
        """The same as loaded from the log: the group may reach that size again, whatever the limit."""
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending: dict[str, None] = {}
        """Member IDs that were handed out but have not joined yet."""
        self.unsynced: dict[str, None] = {}
        """Members of this generation that have not requested their assignment yet."""
        self.initial_wait: tuple[int, int] | None = None
        """While the first members of an empty group gather: how long this round lasts, and what is left after it."""
        self.began_alone_ms: int | None = None
        """When the first member got all partitions because no other had joined; None once that no longer matters."""
        self.members_seen_max = 0
        """The most members it has had at once, as seen by this coordinator."""
        self.has_newcomers = False
        """A member joined in this round, so more may come."""
        self.subscribed: frozenset[str] | None = None
        """The topics that members subscribe to; None if the group is not about topics, does not say, or names more
        than are parsed or fit in memory."""
        self._subscribed_bytes = 0
        self._common: frozenset[str] | None = None
        """The protocols that every member supports; None if they must be computed again."""
        self.assignments: dict[str, bytes] = {}
        """By member, as last written; some of those members may have left since."""
        self.state_since_ms = 0
        """In coordinator time."""
        self.is_written = False
        """Whether the log has a record of it."""
        self.history = History(history_length, self.memory)

    # Facts.

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of its members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def joining_count(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.joining for member in self.members.values())

    def subscribed_among(self, topics: Iterable[str]) -> frozenset[str]:
        if self.subscribed is not None:
            return self.subscribed.intersection(topics)
        return frozenset(topics) if self.is_consumer_group else frozenset()

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return self.subscribed or frozenset()

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols is compatible with the others."""
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type) and bool(protocols)
        common = self.common_protocols()
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def common_protocols(self) -> frozenset[str]:
        """The protocols that every member supports."""
        if self._common is None:
            self._common = frozenset.intersection(*(member.protocol_names for member in self.members.values()))
        return self._common

    def elected_protocol(self) -> str:
        """The common protocol with the most votes; on a tie, the one named first."""
        candidates = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    # Request checks.

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request claims to come from."""
        if instance_id is not None:
            member_id_now = self.static_members.get(instance_id)
            if member_id_now is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if member_id_now != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} has since joined as another member")
        if member_id not in self.members:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[member_id]

    def member_of_generation(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self.member(member_id, instance_id)
        if generation != self.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        return member

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        if self.state is State.EMPTY and generation < 0:
            # An administrator, or a consumer with manual assignment.
            return
        if generation >= 0 or member_id or instance_id is not None:
            self.member_of_generation(member_id, instance_id, generation)
        elif not transactional:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state is State.COMPLETING and not transactional:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anyone may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and not self.is_consumer_group:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "the group has members: stop them first")

    def retained_since_ms(self, committed: Committed) -> int | None:
        if self.protocol_type is None:
            return committed.since_ms
        if self.is_empty:
            return max(self.state_since_ms, committed.since_ms)
        if self.state is State.STABLE and self.is_consumer_group and self.subscribed is not None:
            return committed.since_ms
        return None

    # Memory.

    def _keep(self, more_bytes: int) -> None:
        self.kept_bytes += more_bytes
        self.memory.take(more_bytes)

    def release(self) -> None:
        """Free its memory when it is removed."""
        self._keep(-self.kept_bytes)
        self.memory = GroupMemory()
        self.history.release()

    # Changes between records.

    def move_to(self, state: State, now_ms: int) -> None:
        assert state in ALLOWED[self.state], (self.group_id, self.state, state)
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
            self._common = member.protocol_names
        elif self._common is not None:
            # Updated incrementally: a large group would otherwise scan all members for each that joins.
            self._common &= member.protocol_names
        self.members[member.id] = member
        self._keep(member.kept_bytes)
        self.record_bytes += member.record_bytes
        self.members_seen_max = max(self.members_seen_max, len(self.members))
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        if member.id in self.pending:
            self.forget_promise(member.id)

    def promise(self, member_id: str) -> None:
        """Record a member id that was handed out; a client will join with it."""
        self.pending[member_id] = None
        self._keep(promise_bytes(member_id))

    def forget_promise(self, member_id: str) -> None:
        del self.pending[member_id]
        self._keep(-promise_bytes(member_id))

    def tell(self, member: Member, protocols: Protocols) -> None:
        """Set the member's protocols."""
        names_before, bytes_before = member.protocol_names, member.kept_bytes
        self.record_bytes += said_bytes(protocols) - said_bytes(member.protocols)
        member.protocols = protocols
        self._keep(member.kept_bytes - bytes_before)
        if member.protocol_names != names_before:
            self._common = None

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member's id, keeping its place."""
        self.members = {
            each.id: each for each in (new if member is old else member for member in self.members.values())
        }
        self._keep(new.kept_bytes - old.kept_bytes)
        self.record_bytes += new.record_bytes - old.record_bytes
        self._common = None
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.id
        if self.leader == old.id:
            self.leader = new.id
        self.unsynced = dict.fromkeys(new.id if each == old.id else each for each in self.unsynced)

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        self._keep(-member.kept_bytes)
        self.record_bytes -= member.record_bytes
        self._common = None
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.unsynced.pop(member_id, None)
        return member

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined, electing another member if necessary; False if none has."""
        if self.leader is not None and self.members[self.leader].joining:
            return True
        joined = next((member.id for member in self.members.values() if member.joining), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.elected_protocol()
        self._set_subscribed()
        self.unsynced = dict.fromkeys(self.members)
        self.move_to(State.COMPLETING, now_ms)

    # Records.

    def assigned_record(self, assignments: Mapping[str, bytes], wall_ms: int) -> CoordinatorRecord:
        """This generation, with its assignment."""
        members = [
            member.as_record(self.protocol, assignments.get(member.id, b"")) for member in self.members.values()
        ]
        return group_record(
            self.group_id,
            GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation,
                protocol=self.protocol,
                leader=self.leader,
                current_state_timestamp=wall_ms,
                members=members,
            ),
        )

    def emptied_record(self, wall_ms: int) -> CoordinatorRecord:
        """The next generation, without members."""
        return group_record(
            self.group_id,
            GroupMetadataValue(
                protocol_type=self.protocol_type or "",
                generation=self.generation + 1,
                protocol=None,
                leader=None,
                current_state_timestamp=wall_ms,
                members=[],
            ),
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        return [group_record(self.group_id, None)] if self.is_written else []

    def replay(self, value: GroupMetadataValue, at_ms: int) -> None:
        """Apply the record. Existing members keep what the log does not contain."""
        self.is_written = True
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.leader = value.leader
        self.state = State.STABLE if value.members else State.EMPTY
        self.state_since_ms = at_ms
        self._keep(-_bytes_of(self.members) - assignments_bytes(self.assignments))
        members_before, self.members, self.static_members = self.members, {}, {}
        self._common = None
        for record in value.members:
            member = members_before.get(record.member_id)
            if member is None:
                member = member_from_record(record, value.protocol)
            member.assignment = record.assignment
            self.members[member.id] = member
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member.id
        self.members_seen_max = max(self.members_seen_max, len(self.members))
        self.assignments = {member.id: member.assignment for member in self.members.values()}
        self._keep(_bytes_of(self.members) + assignments_bytes(self.assignments))
        self.record_bytes = sum(member.record_bytes for member in self.members.values())
        self._set_subscribed()

    def _set_subscribed(self) -> None:
        self._keep(-self._subscribed_bytes)
        self.subscribed = self._subscribed_topics()
        self._subscribed_bytes = names_bytes(self.subscribed or ())
        if not self.memory.has_room(self._subscribed_bytes):
            # Many short names take twenty times the memory of their metadata. Dropping them makes nothing expire
            # early.
            self.subscribed, self._subscribed_bytes = None, 0
        self._keep(self._subscribed_bytes)

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        topics: set[str] = set()
        names_left = SUBSCRIBED_NAMES_MAX
        read: tuple[bytes, ...] = ()
        try:
            for member in self.members.values():
                metadata = member.metadata_for(self.protocol)
                # Most members subscribe to the same topics as others.
                if not metadata.startswith(read):
                    names, head = subscribed_topics(metadata, names_left)
                    topics.update(names)
                    names_left -= len(names)
                    read = (*read, head)[-SUBSCRIPTIONS_COMPARED_MAX:]
        except MalformedMessage:
            # Only the group leader has to understand this metadata: do not refuse the members.
            return None
        return frozenset(topics)


def promise_bytes(member_id: str) -> int:
    return PROMISED_ID_BYTES + text_bytes(member_id)


def assignments_bytes(assignments: Mapping[str, bytes]) -> int:
    """Memory for the assignments; member IDs are counted with the members."""
    return sum(ASSIGNMENT_BYTES + len(each) for each in assignments.values())


def _bytes_of(members: Mapping[str, Member]) -> int:
    return sum(member.kept_bytes for member in members.values())
