"""The group's records as bytes, in Kafka's format: a version of two bytes, then the message.

The version of a key is its type; that of a value is the value's own. Only this module converts members, assignments
and patterns to messages and back. ConsumerGroupPartitionMetadata is skipped and no longer written, as in Kafka 4.1
and later: a hash in the group's own record shows whether its topics have changed.
"""

from __future__ import annotations

from typing import Final

from millpond.base.errors import MalformedMessage
from millpond.coordinators.groups.consumer.members import (
    ClassicProtocols,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    Partitions,
    by_topic,
    from_topics,
)
from millpond.coordinators.groups.records import key_version, unversioned, versioned
from millpond.coordinators.shard import CoordinatorRecord
from millpond.wire import messages as m

TYPES: Final[dict[int, tuple[type[m.Message], type[m.Message]]]] = {
    3: (m.ConsumerGroupMetadataKey, m.ConsumerGroupMetadataValue),
    4: (m.ConsumerGroupPartitionMetadataKey, m.ConsumerGroupPartitionMetadataValue),
    5: (m.ConsumerGroupMemberMetadataKey, m.ConsumerGroupMemberMetadataValue),
    6: (m.ConsumerGroupTargetAssignmentMetadataKey, m.ConsumerGroupTargetAssignmentMetadataValue),
    7: (m.ConsumerGroupTargetAssignmentMemberKey, m.ConsumerGroupTargetAssignmentMemberValue),
    8: (m.ConsumerGroupCurrentMemberAssignmentKey, m.ConsumerGroupCurrentMemberAssignmentValue),
    16: (m.ConsumerGroupRegularExpressionKey, m.ConsumerGroupRegularExpressionValue),
}
"""Key and value by the version of the key."""


def encode_record(key: m.Message, value: m.Message | None) -> CoordinatorRecord:
    """One record, in the newest versions."""
    return CoordinatorRecord(_newest(key), None if value is None else _newest(value))


def decode_record(key: bytes, value: bytes | None) -> tuple[m.Message, m.Message | None]:
    """The messages of a record whose key is one of `TYPES`."""
    kind = key_version(key)
    if kind not in TYPES:
        raise MalformedMessage(f"a record of type {kind} does not belong to a consumer group")
    key_class, value_class = TYPES[kind]
    return unversioned(key_class, key), None if value is None else unversioned(value_class, value)


def _newest(message: m.Message) -> bytes:
    return versioned(message, message.VERSIONS[1])


# Values.


def metadata_value(metadata: MemberMetadata) -> m.ConsumerGroupMemberMetadataValue:
    return m.ConsumerGroupMemberMetadataValue(
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.regex,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.assignor,
        classic_member_metadata=None if metadata.classic is None else _classic_value(metadata.classic),
    )


def _classic_value(classic: ClassicProtocols) -> m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata:
    kind = m.ConsumerGroupMemberMetadataValue
    return kind.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[kind.ClassicProtocol(name=name, metadata=data) for name, data in classic.supported],
    )


def metadata_of(value: m.ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    return MemberMetadata(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None if value.classic_member_metadata is None else _classic_of(value.classic_member_metadata),
    )


def _classic_of(value: m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata) -> ClassicProtocols:
    return ClassicProtocols(
        session_timeout_ms=value.session_timeout_ms,
        supported=tuple((each.name, each.metadata) for each in value.supported_protocols),
    )


def current_value(current: CurrentAssignment) -> m.ConsumerGroupCurrentMemberAssignmentValue:
    kind = m.ConsumerGroupCurrentMemberAssignmentValue

    def listed(partitions: Partitions) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
        return [
            kind.TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic(partitions)
        ]

    return kind(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=listed(current.assigned),
        partitions_pending_revocation=listed(current.revoking),
    )


def current_of(value: m.ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    return CurrentAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=from_topics((each.topic_id, each.partitions) for each in value.assigned_partitions),
        revoking=from_topics((each.topic_id, each.partitions) for each in value.partitions_pending_revocation),
    )


def target_value(partitions: Partitions) -> m.ConsumerGroupTargetAssignmentMemberValue:
    kind = m.ConsumerGroupTargetAssignmentMemberValue
    return kind(
        topic_partitions=[
            kind.TopicPartition(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic(partitions)
        ]
    )


def target_of(value: m.ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return from_topics((each.topic_id, each.partitions) for each in value.topic_partitions)
