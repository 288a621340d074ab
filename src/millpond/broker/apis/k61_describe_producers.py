"""DescribeProducers (61), version 0: who writes to partitions, and which transactions are open there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.broker.security.rights import on_each
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services

Topic = m.DescribeProducersResponse.TopicResponse


def handle(broker: Services, call: Call, request: m.DescribeProducersRequest) -> Outcome:
    return m.DescribeProducersResponse(
        topics=[
            Topic(
                name=topic.name,
                partitions=[_describe(broker, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _describe(broker: Services, topic: str, index: int) -> m.DescribeProducersResponse.PartitionResponse:
    partition = broker.partitions.get(topic, index)
    if partition is None:
        return m.DescribeProducersResponse.PartitionResponse(
            partition_index=index, error_code=broker.absence(topic, index)
        )
    return m.DescribeProducersResponse.PartitionResponse(
        partition_index=index,
        active_producers=[
            m.DescribeProducersResponse.ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_start,
            )
            for each in partition.log.producers.facts()
        ],
    )


def _refuse_topic(topic: m.DescribeProducersRequest.TopicRequest, code: ErrorCode) -> Topic:
    return Topic(
        name=topic.name,
        partitions=[
            m.DescribeProducersResponse.PartitionResponse(partition_index=index, error_code=code)
            for index in topic.partition_indexes
        ],
    )


RIGHTS = on_each(
    Operation.READ,
    AclResource.TOPIC,
    of="topics",
    named=lambda topic: topic.name,
    refuse=_refuse_topic,
    into="topics",
)

API = Api(key=61, name="DescribeProducers", versions=(0, 0), handle=handle, lists="topics", rights=RIGHTS)
