"""DescribeTopicPartitions (75), version 0: topics by name, page by page, for topics of any size.

No names means all topics. A cursor must name one of the requested topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.ids import TOPIC_NAME_LENGTH_MAX, topic_name_fault
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.authorized_operations import operations_on
from millpond.broker.authorization.required_rights import Need, by_handler
from millpond.broker.loop.steps import Steps, finished, in_slices
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.responses.partition_states import PartitionStates
from millpond.broker.serving.api import Api
from millpond.config.node import MAX_REQUEST_PARTITION_SIZE_LIMIT
from millpond.metadata.image import Partition, Topic
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext

SEEN = Need(Operation.DESCRIBE, AclResource.TOPIC)

SLICE_TOPICS: Final = 50
"""Topics looked up in one turn of the loop. The slowest is one that the client may not see, because the refusal is
logged."""

LARGE_ITEMS: Final = 500
"""A worker encodes a response with more topics and partitions than this."""


def handle(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.DescribeTopicPartitionsRequest,
) -> Outcome:
    steps = _describe(node, metadata, data, call, request)
    if len(request.topics or metadata.image.topics) <= SLICE_TOPICS:
        return finished(steps)
    return call.connection.run_in_turns(steps)


def _describe(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    request: m.DescribeTopicPartitionsRequest,
) -> Steps[m.DescribeTopicPartitionsResponse]:
    wanted = dict.fromkeys(topic.name for topic in request.topics)
    hidden: list[str] = []
    names: list[str] = []
    for some in in_slices(sorted(wanted or metadata.image.topics, key=_sort_key), SLICE_TOPICS):
        if names or hidden:
            yield None
        for name in some:
            if call.demand(*SEEN, name) if wanted else call.may(*SEEN, name):
                names.append(name)
            elif wanted:
                hidden.append(name)
    left = min(max(request.response_partition_limit, 1), node.settings[MAX_REQUEST_PARTITION_SIZE_LIMIT])
    first_index = 0
    if request.cursor is not None:
        if request.cursor.partition_index < 0 or (wanted and request.cursor.topic_name not in wanted):
            return m.DescribeTopicPartitionsResponse(
                topics=[_failed(topic.name, ErrorCode.INVALID_REQUEST) for topic in request.topics]
            )
        start = request.cursor.topic_name
        hidden = [name for name in hidden if name >= start]
        names = [name for name in names if name >= start]
        if names and names[0] == start:
            first_index = request.cursor.partition_index
    response = m.DescribeTopicPartitionsResponse(topics=[])
    states = PartitionStates(node, metadata, data)
    for number, name in enumerate(names):
        if number % SLICE_TOPICS == SLICE_TOPICS - 1:
            yield None
        topic = metadata.image.topics.get(name)
        if topic is None:
            fault = ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_fault(name) else None
            response.topics.append(_failed(name, fault or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif left <= 0:
            response.next_cursor = _cursor(name, first_index)
            break
        else:
            page = topic.partitions[first_index : first_index + left]
            response.topics.append(_topic(call, states, topic, first_index, len(page)))
            left -= len(page)
            if first_index + len(page) < len(topic.partitions):
                response.next_cursor = _cursor(name, first_index + len(page))
                break
        first_index = 0
    for some in in_slices(hidden, SLICE_TOPICS):
        yield None
        response.topics += [_failed(name, SEEN.refusal) for name in some]
    return response


def _sort_key(name: str) -> str:
    """The part of a name that decides its order. Comparing whole names of 30 KB would hold up the event loop.

    Names that are longer than any topic's and begin alike stay in the order of the request.
    """
    return name[: TOPIC_NAME_LENGTH_MAX + 1]


def _cursor(name: str, index: int) -> m.DescribeTopicPartitionsResponse.Cursor:
    return m.DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=index)


def _failed(name: str, code: ErrorCode) -> m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, partitions=[]
    )


def _topic(
    call: Call, states: PartitionStates, topic: Topic, first: int, count: int
) -> m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic:
    return m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            _partition(states, topic, index, topic.partitions[index]) for index in range(first, first + count)
        ],
        topic_authorized_operations=operations_on(call, AclResource.TOPIC, topic.name),
    )


def _partition(
    states: PartitionStates, topic: Topic, index: int, partition: Partition
) -> m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
    state = states.of(topic, index, partition)
    return m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
        error_code=state.error,
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known),
        offline_replicas=state.offline_replicas,
    )


API = Api(
    key=75,
    name="DescribeTopicPartitions",
    versions=(0, 0),
    handle=handle,
    lists="topics",
    at_once=SLICE_TOPICS,
    # max.request.topics limits them, and the handler takes them in slices.
    whole_max=100_000,
    is_large=lambda response: sum(1 + len(each.partitions) for each in response.topics) > LARGE_ITEMS,
    rights=by_handler(SEEN),
)
