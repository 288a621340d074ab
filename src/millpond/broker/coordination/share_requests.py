"""Requests to the share coordinators of this node.

Each partition of a request goes to the shard that has its state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millpond.base.errors import Refused
from millpond.base.later import Later, done, gather
from millpond.base.named_tuple import NamedTuple
from millpond.coordinators.shard import Request
from millpond.coordinators.shares.keys import SharePartition
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.coordination.coordination import Coordination, ShardHost
    from millpond.coordinators.shares.shard import ShareShard


class Shape(NamedTuple):
    """The classes of one kind of request and its response."""

    request: type[Any]
    topic: type[Any]
    partition: type[Any]
    response: type[Any]
    result: type[Any]
    partition_result: type[Any]


@cache
def shapes() -> dict[int, Shape]:
    """By API key. A function, because a node starts faster without the messages."""
    requests: list[tuple[type[Any], str]] = [
        (m.InitializeShareGroupStateRequest, "InitializeState"),
        (m.ReadShareGroupStateRequest, "ReadState"),
        (m.WriteShareGroupStateRequest, "WriteState"),
        (m.DeleteShareGroupStateRequest, "DeleteState"),
        (m.ReadShareGroupStateSummaryRequest, "ReadStateSummary"),
    ]
    return {request.API_KEY: _shape(request, name) for request, name in requests}


def _shape(request: Any, name: str) -> Shape:
    response: Any = m.response_class(request.API_KEY)
    return Shape(
        request,
        getattr(request, f"{name}Data"),
        request.PartitionData,
        response,
        getattr(response, f"{name}Result"),
        response.PartitionResult,
    )


def request_for(api_key: int, given: Iterable[tuple[SharePartition, Any]]) -> Any:
    """One request about share partitions of one group; each comes with its part of the request."""
    shape, topics, group_id = shapes()[api_key], dict[UUID, list[Any]](), ""
    for key, part in given:
        group_id = key.group_id
        topics.setdefault(key.topic_id, []).append(part)
    return shape.request(
        group_id=group_id,
        topics=[shape.topic(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()],
    )


def ask_share_coordinators(shares: Coordination[ShareShard], body: Any, version: int, client_id: str) -> Later[Any]:
    """The response of the shards on this node. A partition whose state is elsewhere has an error."""
    asked: dict[ShardHost[ShareShard], dict[UUID, list[Any]]] = {}
    refused: list[Any] = []
    for topic in body.topics:
        for partition in topic.partitions:
            key = SharePartition(body.group_id, topic.topic_id, partition.partition).coordinator_key
            try:
                shard_host = shares.shard_host_of(key)
            except Refused as refusal:
                refused.append(refusal_of(body, topic.topic_id, partition.partition, refusal))
            else:
                asked.setdefault(shard_host, {}).setdefault(topic.topic_id, []).append(partition)
    parts = [_ask(shard_host, body, topics, version, client_id) for shard_host, topics in asked.items()]
    return gather([*parts, done(shapes()[body.API_KEY].response(results=refused))]).map(
        lambda responses: _join(body, responses)
    )


def _ask(
    shard_host: ShardHost[ShareShard], body: Any, topics: dict[UUID, list[Any]], version: int, client_id: str
) -> Later[Any]:
    shape = shapes()[body.API_KEY]
    part = shape.request(
        group_id=body.group_id,
        topics=[shape.topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()],
    )
    reply: Later[Any] = Later()
    shard_host.run(
        lambda shard, now_ms: shard.step(Request(part, version, reply, client_id), now_ms),
        # From the state of a deposed coordinator, finished records would be delivered again.
        needs_latest=isinstance(part, m.ReadShareGroupStateRequest),
    )
    return reply.recover(Refused, lambda refused: refuse_all(part, refused))


def _join(body: Any, responses: list[Any]) -> Any:
    """The results in the order of the request."""
    shape, found = shapes()[body.API_KEY], dict[tuple[UUID, int], deque[Any]]()
    for response in responses:
        for result in response.results:
            for each in result.partitions:
                found.setdefault((result.topic_id, each.partition), deque()).append(each)
    return shape.response(
        results=[
            shape.result(
                topic_id=topic.topic_id,
                partitions=[found[topic.topic_id, each.partition].popleft() for each in topic.partitions],
            )
            for topic in body.topics
        ]
    )


def refuse_all(body: Any, refused: Refused) -> m.Message:
    shape = shapes()[body.API_KEY]
    response: m.Message = shape.response(
        results=[
            shape.result(
                topic_id=topic.topic_id,
                partitions=[_refused(shape, each.partition, refused) for each in topic.partitions],
            )
            for topic in body.topics
        ]
    )
    return response


def refusal_of(body: Any, topic_id: UUID, partition: int, refused: Refused) -> Any:
    """The result of one partition with its topic."""
    shape = shapes()[body.API_KEY]
    return shape.result(topic_id=topic_id, partitions=[_refused(shape, partition, refused)])


def _refused(shape: Shape, partition: int, refused: Refused) -> Any:
    return shape.partition_result(partition=partition, error_code=refused.code, error_message=refused.message)
