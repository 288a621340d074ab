"""OffsetForLeaderEpoch (23), versions 2-4: where a leader's epoch ended, so that a reader can see a truncation.

2 the reader's own leader epoch · 3 replica id · 4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.OffsetForLeaderEpochRequest) -> Outcome:
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of_epoch(broker, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(
    broker: Services, topic: str, wanted: m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
) -> m.OffsetForLeaderEpochResponse.EpochEndOffset:
    reply = m.OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition, leader_epoch=-1, end_offset=-1)
    partition = broker.partitions.get(topic, wanted.partition)
    if partition is None:
        reply.error_code = broker.absence(topic, wanted.partition)
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


API = Api(key=23, name="OffsetForLeaderEpoch", versions=(2, 4), handle=handle, lists="topics")
