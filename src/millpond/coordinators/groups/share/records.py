"""The records of a share group as bytes, in Kafka's format: a version of two bytes, then the message."""

from __future__ import annotations

from typing import Final

from millpond.coordinators.groups.consumer.members import (
    CurrentAssignment,
    MemberMetadata,
    Partitions,
    by_topic,
    from_topics,
)
from millpond.coordinators.groups.records import key_version, unversioned
from millpond.wire import messages as m

TYPES: Final[dict[int, tuple[type[m.Message], type[m.Message]]]] = {
    10: (m.ShareGroupMemberMetadataKey, m.ShareGroupMemberMetadataValue),
    11: (m.ShareGroupMetadataKey, m.ShareGroupMetadataValue),
    12: (m.ShareGroupTargetAssignmentMetadataKey, m.ShareGroupTargetAssignmentMetadataValue),
    13: (m.ShareGroupTargetAssignmentMemberKey, m.ShareGroupTargetAssignmentMemberValue),
    14: (m.ShareGroupCurrentMemberAssignmentKey, m.ShareGroupCurrentMemberAssignmentValue),
    15: (m.ShareGroupStatePartitionMetadataKey, m.ShareGroupStatePartitionMetadataValue),
}
"""Key and value by the version of the key."""


def decode_record(key: bytes, value: bytes | None) -> tuple[m.Message, m.Message | None]:
    """The messages of a record whose key is one of `TYPES`."""
    key_class, value_class = TYPES[key_version(key)]
    return unversioned(key_class, key), None if value is None else unversioned(value_class, value)


def metadata_value(metadata: MemberMetadata) -> m.ShareGroupMemberMetadataValue:
    return m.ShareGroupMemberMetadataValue(
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
    )


def metadata_of(value: m.ShareGroupMemberMetadataValue) -> MemberMetadata:
    return MemberMetadata(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(value.subscribed_topic_names),
    )


def current_value(current: CurrentAssignment) -> m.ShareGroupCurrentMemberAssignmentValue:
    kind = m.ShareGroupCurrentMemberAssignmentValue
    return kind(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=[
            kind.TopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in by_topic(current.assigned)
        ],
    )


def current_of(value: m.ShareGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    return CurrentAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=from_topics((each.topic_id, each.partitions) for each in value.assigned_partitions),
    )


def target_value(partitions: Partitions) -> m.ShareGroupTargetAssignmentMemberValue:
    kind = m.ShareGroupTargetAssignmentMemberValue
    return kind(
        topic_partitions=[
            kind.TopicPartition(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic(partitions)
        ]
    )


def target_of(value: m.ShareGroupTargetAssignmentMemberValue) -> Partitions:
    return from_topics((each.topic_id, each.partitions) for each in value.topic_partitions)
