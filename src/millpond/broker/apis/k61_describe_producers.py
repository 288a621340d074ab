"""DescribeProducers (61), version 0: the producers of partitions, and their open transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import on_each
from millpond.broker.loop.steps import Steps, run_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, NodeContext

Topic = m.DescribeProducersResponse.TopicResponse


AT_ONCE_MAX: Final = 250
"""Partitions and producers described in one step; more only if a single partition has more."""


def handle(node: NodeContext, data: DataContext, call: Call, request: m.DescribeProducersRequest) -> Outcome:
    # Each partition once: its producers, repeated thousands of times, would fill the memory.
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return run_steps(node.clock, _describe_all(data, wanted))


def _describe_all(data: DataContext, wanted: dict[str, dict[int, None]]) -> Steps[m.DescribeProducersResponse]:
    response = m.DescribeProducersResponse(topics=[])
    described = 0
    for name, indexes in wanted.items():
        topic = Topic(name=name, partitions=[])
        response.topics.append(topic)
        for index in indexes:
            if described > AT_ONCE_MAX:
                described = 0
                yield None
            each = _describe(data, name, index)
            topic.partitions.append(each)
            described += 1 + len(each.active_producers)
    return response


def _is_large(response: m.DescribeProducersResponse) -> bool:
    return sum(1 + len(each.active_producers) for topic in response.topics for each in topic.partitions) > AT_ONCE_MAX


def _describe(data: DataContext, topic: str, index: int) -> m.DescribeProducersResponse.PartitionResponse:
    partition = data.partitions.get(topic, index)
    if partition is None:
        return m.DescribeProducersResponse.PartitionResponse(
            partition_index=index, error_code=data.absence(topic, index)
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

API = Api(
    key=61,
    name="DescribeProducers",
    versions=(0, 0),
    handle=handle,
    lists="topics",
    is_large=_is_large,
    # The handler runs in steps and describes each partition once.
    whole_max=100_000,
    rights=RIGHTS,
)
