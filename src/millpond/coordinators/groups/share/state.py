"""The durable state of a share group. Only `replay` changes it: each record sets or deletes one thing by its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.groups.consumer.members import (
    NO_PARTITIONS,
    CurrentAssignment,
    Member,
    MemberMetadata,
    Partitions,
)
from millpond.coordinators.groups.consumer.records import encode_record
from millpond.coordinators.groups.consumer.state import EMPTY, NO_EPOCH, STABLE, member_bytes
from millpond.coordinators.groups.memory import TARGET_BYTES, text_bytes
from millpond.coordinators.groups.share.records import (
    current_of,
    current_value,
    metadata_of,
    metadata_value,
    target_of,
    target_value,
)
from millpond.coordinators.shard import CoordinatorRecord
from millpond.wire import messages as m

TOPIC_BYTES: Final = 256
"""A topic whose delivery state exists, without its name."""
PARTITION_BYTES: Final = 768
"""The delivery state of a partition, mostly in the memory of its share coordinator."""


class SharedTopic(NamedTuple):
    """A topic for which the share coordinator keeps delivery state of this group."""

    name: str
    partitions: frozenset[int] = frozenset()


Topics = Mapping[UUID, SharedTopic]


def topics_bytes(topics: Topics) -> int:
    return sum(
        TOPIC_BYTES + text_bytes(topic.name) + PARTITION_BYTES * len(topic.partitions) for topic in topics.values()
    )


@dataclass(slots=True)
class ShareGroupState:
    epoch: int = 0
    assignment_epoch: int = NO_EPOCH
    members: dict[str, Member] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    initialized: Topics = field(default_factory=dict)
    """The topics whose delivery state exists, by id."""
    deleting: Topics = field(default_factory=dict)
    """Those of them whose delivery state is being deleted, or was, as far as a deletion came that did not end."""
    kept_bytes: int = 0
    """The memory that all this takes."""

    def copy(self) -> ShareGroupState:
        return replace(self, members=dict(self.members), targets=dict(self.targets))

    @property
    def name(self) -> str:
        return STABLE if self.members else EMPTY

    @property
    def topic_names(self) -> frozenset[str]:
        return frozenset(topic for member in self.members.values() for topic in member.metadata.topics)

    def ready(self, topic_id: UUID) -> frozenset[int]:
        """The partitions of a topic whose delivery state exists for certain."""
        topic = None if topic_id in self.deleting else self.initialized.get(topic_id)
        return frozenset() if topic is None else topic.partitions

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def replay(self, key: m.Message, value: m.Message | None) -> None:
        match key, value:
            case m.ShareGroupMetadataKey(), None:
                self.epoch = 0
            case m.ShareGroupMetadataKey(), m.ShareGroupMetadataValue():
                self.epoch = value.epoch
            case m.ShareGroupTargetAssignmentMetadataKey(), None:
                self.assignment_epoch = NO_EPOCH
            case m.ShareGroupTargetAssignmentMetadataKey(), m.ShareGroupTargetAssignmentMetadataValue():
                self.assignment_epoch = value.assignment_epoch
            case m.ShareGroupTargetAssignmentMemberKey(), None:
                self._set_target(key.member_id, None)
            case m.ShareGroupTargetAssignmentMemberKey(), m.ShareGroupTargetAssignmentMemberValue():
                self._set_target(key.member_id, target_of(value))
            case m.ShareGroupMemberMetadataKey(), None:
                gone = self.members.pop(key.member_id, None)
                self.kept_bytes -= 0 if gone is None else member_bytes(gone)
            case m.ShareGroupMemberMetadataKey(), m.ShareGroupMemberMetadataValue():
                self._set_member(replace(self._member(key.member_id), metadata=metadata_of(value)))
            case m.ShareGroupCurrentMemberAssignmentKey(), None:
                if key.member_id in self.members:
                    self._set_member(replace(self.members[key.member_id], current=CurrentAssignment()))
            case m.ShareGroupCurrentMemberAssignmentKey(), m.ShareGroupCurrentMemberAssignmentValue():
                self._set_member(replace(self._member(key.member_id), current=current_of(value)))
            case m.ShareGroupStatePartitionMetadataKey(), _:
                assert value is None or isinstance(value, m.ShareGroupStatePartitionMetadataValue)
                self._set_topics(value)
            case _:
                raise AssertionError(f"{key} with {value} is not a record of a share group")

    def _member(self, member_id: str) -> Member:
        """The member. A compacted log may have its assignment before its metadata."""
        return self.members.get(member_id) or Member(member_id)

    def _set_member(self, member: Member) -> None:
        before = self.members.get(member.id)
        self.kept_bytes += member_bytes(member) - (0 if before is None else member_bytes(before))
        self.members[member.id] = member

    def _set_target(self, member_id: str, target: Partitions | None) -> None:
        self.kept_bytes += TARGET_BYTES * (len(target or ()) - len(self.target(member_id)))
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target

    def _set_topics(self, value: m.ShareGroupStatePartitionMetadataValue | None) -> None:
        self.kept_bytes -= topics_bytes(self.initialized) + topics_bytes(self.deleting)
        self.initialized, self.deleting = {}, {}
        if value is not None:
            self.initialized = {
                each.topic_id: SharedTopic(each.topic_name, frozenset(each.partitions))
                for each in value.initialized_topics
            }
            self.deleting = {each.topic_id: SharedTopic(each.topic_name) for each in value.deleting_topics}
        self.kept_bytes += topics_bytes(self.initialized) + topics_bytes(self.deleting)


class ShareDraft:
    """A decision under construction: records in order, and the state after they are replayed (see
    `consumer/draft.py`)."""

    def __init__(self, group_id: str, state: ShareGroupState) -> None:
        self.group_id = group_id
        self.state = state
        self.records: list[CoordinatorRecord] = []

    def _write(self, key: m.Message, value: m.Message | None) -> None:
        if not self.records:
            self.state = self.state.copy()
        self.state.replay(key, value)
        self.records.append(encode_record(key, value))

    # One method for each kind of record.

    def set_epoch(self, epoch: int) -> None:
        self._write(m.ShareGroupMetadataKey(group_id=self.group_id), m.ShareGroupMetadataValue(epoch=epoch))

    def set_assignment_epoch(self, epoch: int) -> None:
        self._write(
            m.ShareGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            m.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )

    def set_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        key = m.ShareGroupMemberMetadataKey(group_id=self.group_id, member_id=member_id)
        self._write(key, metadata_value(metadata))

    def set_target(self, member_id: str, target: Partitions) -> None:
        key = m.ShareGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id)
        self._write(key, target_value(target))

    def set_current(self, member_id: str, current: CurrentAssignment) -> None:
        key = m.ShareGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member_id)
        self._write(key, current_value(current))

    def remove_member(self, member_id: str) -> None:
        group_id = self.group_id
        self._write(m.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
        if member_id in self.state.targets:
            self._write(m.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
        self._write(m.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)

    def set_topics(self, initialized: Topics, deleting: Topics) -> None:
        kind = m.ShareGroupStatePartitionMetadataValue
        value = kind(
            initialized_topics=[
                kind.TopicPartitionsInfo(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
                )
                for topic_id, topic in initialized.items()
            ],
            deleting_topics=[
                kind.TopicInfo(topic_id=topic_id, topic_name=topic.name) for topic_id, topic in deleting.items()
            ],
        )
        self._write(m.ShareGroupStatePartitionMetadataKey(group_id=self.group_id), value)

    def remove_group(self) -> None:
        for member_id in list(self.state.members):
            self.remove_member(member_id)
        self._write(m.ShareGroupStatePartitionMetadataKey(group_id=self.group_id), None)
        self._write(m.ShareGroupTargetAssignmentMetadataKey(group_id=self.group_id), None)
        self._write(m.ShareGroupMetadataKey(group_id=self.group_id), None)
