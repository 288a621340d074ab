"""The rights that requests about groups need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import (
    Need,
    Rights,
    Screened,
    on_each,
    split_topics,
    to_the_end,
    topic_refusal,
    whole,
)
from millpond.broker.coordinator_calls.group_calls import kept_of, refuse_group
from millpond.broker.requests.call import Call

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, SecurityContext
    from millpond.broker.requests.connection import Connection


def on_group(operation: Operation) -> Rights:
    """A right on the group that a request is about."""
    return whole(operation, AclResource.GROUP, lambda request: request.group_id, _refuse_group)


def _refuse_group(call: Call, request: Any, code: ErrorCode) -> Any:
    return refuse_group(call, request, Refused(code))


def on_groups(operation: Operation, names: str, results: str, refused: Callable[..., Any]) -> Rights:
    """A right on each group that a request names."""
    return on_each(
        operation,
        AclResource.GROUP,
        of=names,
        named=str,
        refuse=lambda name, code: refused(group_id=name, error_code=code),
        into=results,
    )


def on_topics(topic_kind: type[Any], partition_kind: type[Any], *, ids_from: int | None = None) -> Rights:
    """The right to read each topic whose offsets change. Requests have topic ids from version `ids_from` on."""
    need = Need(Operation.READ, AclResource.TOPIC)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        by_id = ids_from is not None and call.version >= ids_from

        def code_of(topic: Any) -> ErrorCode:
            topic_id = getattr(topic, "topic_id", NO_TOPIC_ID)
            if by_id and topic_id == NO_TOPIC_ID:
                # No topic has this id: the coordinator refuses it.
                return ErrorCode.NONE
            return topic_refusal(metadata, call, need, None if by_id else topic.name, topic_id)

        def refuse(topic: Any, code: ErrorCode) -> Any:
            partitions = [
                partition_kind(partition_index=each.partition_index, error_code=code) for each in topic.partitions
            ]
            topic_id = getattr(topic, "topic_id", NO_TOPIC_ID)
            named = {"name": topic.name} | ({"topic_id": topic_id} if topic_id != NO_TOPIC_ID else {})
            return topic_kind(**named, partitions=partitions)

        return split_topics(request, "topics", code_of, refuse, "topics")

    return Rights((need,), screen)


def may_read_group(security: SecurityContext, connection: Connection, group_id: str) -> bool:
    """Whether the short path may serve it. If not, the general path refuses it and logs the refusal."""
    access = security.access
    return not access.is_on or access.may(
        connection.known, connection.host, Operation.READ, AclResource.GROUP, group_id
    )


READ_GROUP = on_group(Operation.READ)
WAIT_IN_GROUP = to_the_end(READ_GROUP, lambda request: request.group_id, _refuse_group, kept_of)
"""For requests that wait for other members, possibly for minutes: the right is checked again before the response."""
