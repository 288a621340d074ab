"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended, so that readers can detect truncation.

2 the reader's leader epoch · 3 replica id · 4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import Rights, Screened, on_each
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext

Topic = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


def handle(data: DataContext, call: Call, request: m.OffsetForLeaderEpochRequest) -> Outcome:
    return m.OffsetForLeaderEpochResponse(
        topics=[
            Topic(
                topic=topic.topic,
                partitions=[_end_of_epoch(data, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(
    data: DataContext, topic: str, wanted: m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
) -> m.OffsetForLeaderEpochResponse.EpochEndOffset:
    reply = m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition, leader_epoch=-1, end_offset=-1)
    partition = data.partitions.get(topic, wanted.partition)
    if partition is None:
        reply.error_code = data.absence(topic, wanted.partition)
        return reply
    try:
        partition.check_leader_epoch(wanted.current_leader_epoch)
        partition.check_leads()
        if wanted.leader_epoch > partition.leader_epoch:
            partition.check_certain()
    except Refused as refusal:
        reply.error_code = refusal.code
        return reply
    reply.leader_epoch, reply.end_offset = partition.end_of_epoch(wanted.leader_epoch)
    return reply


def _refuse_topic(topic: m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic, code: ErrorCode) -> Topic:
    return Topic(
        topic=topic.topic,
        partitions=[
            m.OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=each.partition, error_code=code, leader_epoch=-1, end_offset=-1
            )
            for each in topic.partitions
        ],
    )


_ON_TOPIC = on_each(
    Operation.DESCRIBE,
    AclResource.TOPIC,
    of="topics",
    named=lambda topic: topic.topic,
    refuse=_refuse_topic,
    into="topics",
)


def _screen(metadata: MetadataContext, call: Call, request: m.OffsetForLeaderEpochRequest) -> Screened | None:
    """Followers may ask about any topic."""
    if call.may(Operation.CLUSTER_ACTION, AclResource.CLUSTER, CLUSTER_NAME):
        return None
    assert _ON_TOPIC.screen is not None
    return _ON_TOPIC.screen(metadata, call, request)


API = Api(
    key=23,
    name="OffsetForLeaderEpoch",
    versions=(2, 4),
    handle=handle,
    lists="topics",
    pieces=(way("topics.partitions", "topics.partitions"),),
    rights=Rights(_ON_TOPIC.needs, _screen),
)
