"""The durable state of a group. Only `replay` changes it: each record sets or deletes one thing by its key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from millpond.coordinators.groups.consumer.members import (
    NO_PARTITIONS,
    CurrentAssignment,
    Member,
    MemberMetadata,
    Partitions,
    TopicIdPartition,
)
from millpond.coordinators.groups.consumer.records import current_of, metadata_of, target_of
from millpond.coordinators.groups.memory import MEMBER_BYTES, TARGET_BYTES, names_bytes, text_bytes
from millpond.wire import messages as m

EMPTY: Final = "Empty"
ASSIGNING: Final = "Assigning"
RECONCILING: Final = "Reconciling"
STABLE: Final = "Stable"
DEAD: Final = "Dead"

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class ResolvedPattern:
    """The topics that a subscribed pattern matched when it was last evaluated."""

    topics: tuple[str, ...]
    version: int = 0
    timestamp_ms: int = 0


def member_bytes(member: Member) -> int:
    return MEMBER_BYTES + text_bytes(member.id) + member.metadata.kept_bytes + member.current.kept_bytes


def pattern_bytes(pattern: str, topics: tuple[str, ...]) -> int:
    return text_bytes(pattern) + names_bytes(topics)


@dataclass(slots=True)
class GroupState:
    """Durable state. `static_ids` and `owners` are derived from the members for fast lookups."""

    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = NO_EPOCH
    members: dict[str, Member] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    patterns: dict[str, ResolvedPattern] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    """The member that holds each partition and has not revoked it yet."""
    kept_bytes: int = 0
    """The memory that all this takes."""

    def copy(self) -> GroupState:
        return replace(
            self,
            members=dict(self.members),
            targets=dict(self.targets),
            patterns=dict(self.patterns),
            static_ids=dict(self.static_ids),
            owners=dict(self.owners),
        )

    # Reading.

    @property
    def name(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        if all(member.current.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return STABLE
        return RECONCILING

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def topics_of(self, member: Member) -> tuple[str, ...]:
        """The topic names a member subscribes to, including those of its pattern."""
        metadata = member.metadata
        resolved = self.patterns.get(metadata.regex) if metadata.regex else None
        return metadata.topics if resolved is None else (*metadata.topics, *resolved.topics)

    def subscriptions(self) -> Iterator[tuple[str, ...]]:
        """All subscriptions of members; a shared pattern's topics once."""
        patterns: dict[str, None] = {}
        for member in self.members.values():
            yield member.metadata.topics
            if member.metadata.regex:
                patterns[member.metadata.regex] = None
        yield from (self.patterns[pattern].topics for pattern in patterns if pattern in self.patterns)

    # Changing.

    def replay(self, key: m.Message, value: m.Message | None) -> None:
        match key, value:
            case m.ConsumerGroupMetadataKey(), None:
                self.epoch = self.metadata_hash = 0
            case m.ConsumerGroupMetadataKey(), m.ConsumerGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case m.ConsumerGroupTargetAssignmentMetadataKey(), None:
                self.assignment_epoch = NO_EPOCH
            case m.ConsumerGroupTargetAssignmentMetadataKey(), m.ConsumerGroupTargetAssignmentMetadataValue():
                self.assignment_epoch = value.assignment_epoch
            case m.ConsumerGroupTargetAssignmentMemberKey(), None:
                self._set_target(key.member_id, None)
            case m.ConsumerGroupTargetAssignmentMemberKey(), m.ConsumerGroupTargetAssignmentMemberValue():
                self._set_target(key.member_id, target_of(value))
            case m.ConsumerGroupMemberMetadataKey(), None:
                self._remove_member(key.member_id)
            case m.ConsumerGroupMemberMetadataKey(), m.ConsumerGroupMemberMetadataValue():
                self._set_metadata(key.member_id, metadata_of(value))
            case m.ConsumerGroupCurrentMemberAssignmentKey(), None:
                if key.member_id in self.members:
                    self._set_current(key.member_id, CurrentAssignment())
            case m.ConsumerGroupCurrentMemberAssignmentKey(), m.ConsumerGroupCurrentMemberAssignmentValue():
                self._set_current(key.member_id, current_of(value))
            case m.ConsumerGroupRegularExpressionKey(), None:
                self._set_pattern(key.regular_expression, None)
            case m.ConsumerGroupRegularExpressionKey(), m.ConsumerGroupRegularExpressionValue():
                resolved = ResolvedPattern(tuple(value.topics), value.version, value.timestamp)
                self._set_pattern(key.regular_expression, resolved)
            case m.ConsumerGroupPartitionMetadataKey(), _:
                pass  # Written by older Kafka; the hash replaces it.
            case _:
                raise AssertionError(f"{key} with {value} is not a record of a consumer group")

    def _set_target(self, member_id: str, target: Partitions | None) -> None:
        self.kept_bytes += TARGET_BYTES * (len(target or ()) - len(self.target(member_id)))
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target

    def _set_pattern(self, pattern: str, resolved: ResolvedPattern | None) -> None:
        before = self.patterns.pop(pattern, None)
        if before is not None:
            self.kept_bytes -= pattern_bytes(pattern, before.topics)
        if resolved is not None:
            self.kept_bytes += pattern_bytes(pattern, resolved.topics)
            self.patterns[pattern] = resolved

    def _known(self, member_id: str) -> Member:
        """The member, or an empty one if nothing is known yet."""
        member = self.members.get(member_id)
        if member is None:
            member = Member(member_id)
            self.kept_bytes += member_bytes(member)
        return member

    def _set_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        old = self._known(member_id)
        self.kept_bytes += metadata.kept_bytes - old.metadata.kept_bytes
        self._forget_instance(old)
        self.members[member_id] = replace(old, metadata=metadata)
        if metadata.instance_id is not None:
            self.static_ids[metadata.instance_id] = member_id

    def _set_current(self, member_id: str, current: CurrentAssignment) -> None:
        # A compacted log may have a member's assignment before its metadata.
        old = self._known(member_id)
        self.kept_bytes += current.kept_bytes - old.current.kept_bytes
        self._forget_owner(old)
        self.members[member_id] = replace(old, current=current)
        for partition in current.assigned | current.revoking:
            self.owners[partition] = member_id

    def _remove_member(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self.kept_bytes -= member_bytes(old)
            self._forget_owner(old)
            self._forget_instance(old)

    def _forget_owner(self, member: Member) -> None:
        for partition in member.current.assigned | member.current.revoking:
            if self.owners.get(partition) == member.id:
                del self.owners[partition]

    def _forget_instance(self, member: Member) -> None:
        instance_id = member.metadata.instance_id
        if instance_id is not None and self.static_ids.get(instance_id) == member.id:
            del self.static_ids[instance_id]
