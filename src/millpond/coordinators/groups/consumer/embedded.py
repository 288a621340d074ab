"""What classic consumers embed in the group protocol: subscriptions and assignments, by topic name."""

from __future__ import annotations

from millpond.coordinators.groups.consumer.members import Partitions, TopicIdPartition, by_topic, from_topics
from millpond.coordinators.groups.records import key_version, prefix_of, versioned
from millpond.coordinators.shard import Sees, sees_all
from millpond.metadata.image import Image
from millpond.wire import messages as m


def subscription_of(data: bytes) -> m.ConsumerProtocolSubscription:
    """MalformedMessage if it is not one."""
    return prefix_of(m.ConsumerProtocolSubscription, data)


def assignment_of(data: bytes) -> m.ConsumerProtocolAssignment:
    """The same for an assignment; no bytes are an empty one."""
    return prefix_of(m.ConsumerProtocolAssignment, data) if data else m.ConsumerProtocolAssignment()


def owned_partitions(subscription: m.ConsumerProtocolSubscription, image: Image, sees: Sees = sees_all) -> Partitions:
    """The partitions that the member owns. One that reports nothing revoked everything before it joined, and
    no member owns topics it may not see."""
    return from_topics(
        (image.topics[each.topic].id, each.partitions)
        for each in subscription.owned_partitions
        if each.topic in image.topics and sees(each.topic)
    )


def partitions_of(assignment: bytes, image: Image) -> Partitions:
    """An assignment resolved against the current topics."""
    return assigned_partitions(assignment_of(assignment), image)


def assigned_partitions(assignment: m.ConsumerProtocolAssignment, image: Image) -> Partitions:
    return frozenset(
        TopicIdPartition(image.topics[each.topic].id, number)
        for each in assignment.assigned_partitions
        if each.topic in image.topics
        for number in each.partitions
    )


def assignment_bytes(partitions: Partitions, like: bytes, image: Image, sees: Sees = sees_all) -> bytes:
    """An assignment in the version of the member's subscription, limited to topics that the client may see."""
    kind = m.ConsumerProtocolAssignment
    assigned = [
        kind.TopicPartition(topic=image.topics_by_id[topic_id].name, partitions=numbers)
        for topic_id, numbers in by_topic(partitions)
        if topic_id in image.topics_by_id and sees(image.topics_by_id[topic_id].name)
    ]
    version = max(kind.VERSIONS[0], min(key_version(like), kind.VERSIONS[1]))
    return versioned(kind(assigned_partitions=assigned), version)
