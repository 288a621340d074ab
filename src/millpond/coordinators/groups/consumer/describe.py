"""ConsumerGroupDescribe 0-1: a group as tools show it."""

from __future__ import annotations

from millpond.coordinators.groups.consumer.members import Member, Partitions, by_topic
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.state import GroupState
from millpond.coordinators.groups.consumer.target import preferred_assignor
from millpond.metadata.image import Image
from millpond.wire import messages as m

CLASSIC_TYPE = 0
CONSUMER_TYPE = 1


def described(
    group_id: str, state: GroupState, settings: ConsumerGroupSettings, image: Image
) -> m.ConsumerGroupDescribeResponse.DescribedGroup:
    return m.ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id,
        group_state=state.name,
        group_epoch=state.epoch,
        assignment_epoch=max(state.assignment_epoch, 0),
        assignor_name=preferred_assignor(state.members.values(), settings.assignors),
        members=[_member(member, state, image) for member in state.members.values()],
    )


def _member(member: Member, state: GroupState, image: Image) -> m.ConsumerGroupDescribeResponse.Member:
    metadata = member.metadata
    return m.ConsumerGroupDescribeResponse.Member(
        member_id=member.id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.regex,
        assignment=_assignment(member.current.assigned, image),
        target_assignment=_assignment(state.target(member.id), image),
        member_type=CLASSIC_TYPE if member.is_classic else CONSUMER_TYPE,
    )


def _assignment(partitions: Partitions, image: Image) -> m.ConsumerGroupDescribeResponse.Assignment:
    """Partitions of deleted topics have no name to show."""
    kind = m.ConsumerGroupDescribeResponse
    return kind.Assignment(
        topic_partitions=[
            kind.TopicPartitions(topic_id=topic_id, topic_name=image.topics_by_id[topic_id].name, partitions=numbers)
            for topic_id, numbers in by_topic(partitions)
            if topic_id in image.topics_by_id
        ]
    )
