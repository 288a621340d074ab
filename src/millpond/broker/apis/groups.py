"""The APIs that are one question to the coordinator of a group, or of each of several groups, a line each.

OffsetCommit (8), how far a group has read: 5 no retention time · 6 leader epoch · 7 static members · 8 flexible ·
9 member epochs of the new protocol · 10 topic ids.
JoinGroup (11), a consumer joins, or comes back after a rebalance began: 1 rebalance timeout · 4 a member id is handed
out first · 5 static members · 6 flexible · 7 protocol type · 8 a reason · 9 the leader may be told not to assign.
Heartbeat (12), a member is alive and learns of a rebalance: 1 throttle time · 3 static members · 4 flexible.
LeaveGroup (13), members leave at once instead of timing out: 1 throttle time · 3 several members, static ones too ·
4 flexible · 5 a reason.
SyncGroup (14), the leader hands in the assignment, every member gets its part: 1 throttle time · 3 static members ·
4 flexible · 5 protocol type and name.
DescribeGroups (15), state, protocol and members of classic groups: 3 authorised operations · 4 static members ·
5 flexible · 6 error messages, unknown groups are an error.
DeleteGroups (42), forget empty groups and their offsets: 2 flexible · 3 error messages.
OffsetDelete (47), forget offsets of topics that the group no longer reads.
ConsumerGroupHeartbeat (68), join, stay in, and leave by the new protocol (KIP-848): 1 subscription by pattern, the
client makes its own member id.
ConsumerGroupDescribe (69), state, epochs, members and assignments of groups of the new protocol: 1 which protocol
each member speaks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import NO_TOPIC_ID
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.authorized_operations import operations_on
from millpond.broker.authorization.required_rights import (
    NOT_AUTHORISED,
    Need,
    Rights,
    Screened,
    both,
    may_topic,
    on_each,
    split_topics,
    to_the_end,
    topic_refusal,
    whole,
)
from millpond.broker.coordinator_calls.group_calls import GROUPS_AT_ONCE, ask_group, kept_of, refuse_group
from millpond.broker.coordinator_calls.pending_commits import OFFSET_COMMIT, PendingCommit
from millpond.broker.loop.steps import ask_in_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.features import GROUP_VERSION
from millpond.wire import messages as m
from millpond.wire.kernel import short_commit, short_consumer_heartbeat, short_heartbeat

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext, SecurityContext
    from millpond.broker.requests.connection import Connection

HEARTBEAT: Final = 12
CONSUMER_HEARTBEAT: Final = 68


def ask(coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
    return ask_group(coordination, call, request.group_id, request)


def each_of(names: str, results: str) -> Callable[[NodeContext, CoordinationContext, Call, Any], Outcome]:
    """Asks for each of the groups that a request has in `names`, and joins what the answers have in `results`."""

    def ask_each(node: NodeContext, coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
        kind = type(request)
        groups = dict.fromkeys(getattr(request, names))
        questions = (partial(ask_group, coordination, call, each, kind(**{names: [each]})) for each in groups)
        answered = ask_in_steps(node.clock, questions, GROUPS_AT_ONCE)
        return answered.map(lambda answers: join(call, request, answers))

    def join(call: Call, request: Any, answers: list[Any]) -> Any:
        joined = [each for answer in answers for each in getattr(answer, results)]
        for each in joined:
            if getattr(request, "include_authorized_operations", False) and not each.error_code:
                each.authorized_operations = operations_on(call, AclResource.GROUP, each.group_id)
        return m.response_class(request.API_KEY)(**{results: joined})

    return ask_each


def assigned_by_us(metadata: MetadataContext, coordination: CoordinationContext, call: Call, request: Any) -> Outcome:
    """Groups of the new protocol are served once group.version says that all nodes read their records."""
    if metadata.image.features.get(GROUP_VERSION, 0):
        return ask(coordination, call, request)
    return m.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="group.version is 0: use group.protocol=classic, or raise it (millpond cluster upgrade)",
    )


def heartbeat_short(
    node: NodeContext,
    security: SecurityContext,
    coordination: CoordinationContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """A member is alive and may go on."""
    asked = short_heartbeat(frame)
    if asked is None or not _may_read(security, connection, asked.group_id):
        return False
    shard_host = coordination.groups.home_that_serves(asked.group_id)
    if shard_host is None or not shard_host.tell(
        lambda shard, now_ms: shard.beat(asked.group_id, asked.member_id, asked.generation, now_ms) or None
    ):
        return False
    connection.reply_frame(asked.reply())
    node.requests.on_answer(HEARTBEAT, connection.arrived_us)
    return True


def consumer_heartbeat_short(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    coordination: CoordinationContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """The same by the new protocol."""
    asked = short_consumer_heartbeat(frame)
    if asked is None or not _may_read(security, connection, asked.group_id):
        return False
    shard_host = coordination.groups.home_that_serves(asked.group_id)
    if shard_host is None or not metadata.image.features.get(GROUP_VERSION, 0):
        return False
    interval_ms = shard_host.tell(
        lambda shard, now_ms: shard.consumer_beat(
            asked.group_id, asked.member_id, asked.epoch, asked.client_id, connection.host, now_ms
        )
    )
    if interval_ms is None:
        return False
    connection.reply_frame(asked.reply(interval_ms))
    node.requests.on_answer(CONSUMER_HEARTBEAT, connection.arrived_us)
    return True


def commit_short(
    node: NodeContext,
    security: SecurityContext,
    coordination: CoordinationContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """A member has read one partition so far."""
    asked = short_commit(frame)
    if asked is None or not _may_read(security, connection, asked.group_id):
        return False
    access = security.access
    if access.is_on and not access.may_often(connection, Operation.READ, asked.topic):
        return False
    shard_host = coordination.groups.home_that_serves(asked.group_id)
    if shard_host is None:
        return False
    parked = PendingCommit(node, connection, asked)
    if not shard_host.attempt(
        lambda shard, now_ms: shard.commit_one(asked, parked, now_ms), parked, asked.client_id, "OffsetCommitRequest"
    ):
        return False
    parked.wait()
    return True


def _may_read(security: SecurityContext, connection: Connection, group_id: str) -> bool:
    """Whether it may; if not, the general way notes that it has tried."""
    access = security.access
    return not access.is_on or access.may(
        connection.known, connection.host, Operation.READ, AclResource.GROUP, group_id
    )


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
    """The right to read each topic whose offsets are changed. From version `ids_from` on, requests have topic ids."""
    need = Need(Operation.READ, AclResource.TOPIC)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        by_id = ids_from is not None and call.version >= ids_from

        def code_of(topic: Any) -> ErrorCode:
            topic_id = getattr(topic, "topic_id", NO_TOPIC_ID)
            if by_id and topic_id == NO_TOPIC_ID:
                # Refused by the coordinator: no topic has this id.
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


def _hide_groups_of_hidden_topics(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
    """A group whose members read a topic that one may not see is not described."""
    if call.is_unlimited:
        return None
    need = Need(Operation.DESCRIBE, AclResource.TOPIC)

    def mend(response: m.ConsumerGroupDescribeResponse) -> m.ConsumerGroupDescribeResponse:
        for group in response.groups:
            if not all(call.may(*need, name) for name in _topics_of(group)):
                group.error_code, group.error_message = need.refusal, "the group reads topics that you may not see"
                group.members = []
        return response

    return Screened(request, mend=mend)


def _topics_of(group: m.ConsumerGroupDescribeResponse.DescribedGroup) -> set[str]:
    assigned = (each.assignment for each in group.members), (each.target_assignment for each in group.members)
    names = {topic.topic_name for part in assigned for each in part for topic in each.topic_partitions}
    return names.union(*(each.subscribed_topic_names for each in group.members))


def _subscribes(metadata: MetadataContext, call: Call, request: m.ConsumerGroupHeartbeatRequest) -> Screened | None:
    """Topics that one may not see cannot be subscribed to."""
    need = Need(Operation.DESCRIBE, AclResource.TOPIC)
    if call.is_unlimited:
        return None
    if not all(call.demand(*need, name) for name in request.subscribed_topic_names or ()):
        return Screened(None, m.ConsumerGroupHeartbeatResponse(error_code=need.refusal, error_message=NOT_AUTHORISED))

    def mend(response: m.ConsumerGroupHeartbeatResponse) -> m.ConsumerGroupHeartbeatResponse:
        """A pattern may also stand for topics that this member may not see: it is given none of them."""
        if response.assignment is not None:
            response.assignment.topic_partitions = [
                each
                for each in response.assignment.topic_partitions
                if may_topic(metadata, call, Operation.DESCRIBE, None, each.topic_id)
            ]
        return response

    return Screened(request, mend=mend)


COMMITTED_AT_ONCE: Final = 500
"""This many offsets of one request are committed as one batch, which takes 5 to 10 ms of the loop. The offsets of
different partitions do not depend on each other; where they must be committed together, clients use a transaction."""

DESCRIBED_AT_ONCE: Final = 100
LARGE_BYTES: Final = 128 << 10
"""An answer with more members than that, or more bytes of them, is encoded by a worker."""


def _has_many_members(response: m.JoinGroupResponse) -> bool:
    members = response.members
    return len(members) > DESCRIBED_AT_ONCE or sum(len(each.metadata) for each in members) > LARGE_BYTES


def _has_large_assignment(response: m.SyncGroupResponse) -> bool:
    return len(response.assignment) > LARGE_BYTES


def _describes_many_members(response: m.DescribeGroupsResponse) -> bool:
    members = [member for group in response.groups for member in group.members]
    return (
        len(members) > DESCRIBED_AT_ONCE
        or sum(len(each.member_metadata) + len(each.member_assignment) for each in members) > LARGE_BYTES
    )


READ_GROUP = on_group(Operation.READ)
WAIT_IN_GROUP = to_the_end(READ_GROUP, lambda request: request.group_id, _refuse_group, kept_of)
"""For what waits for the other members, minutes perhaps, and is then told of them."""
SEE_TOPICS = (Need(Operation.DESCRIBE, AclResource.TOPIC),)

APIS = (
    Api(
        OFFSET_COMMIT,
        "OffsetCommit",
        (2, 10),
        ask,
        short=commit_short,
        lists="topics",
        at_once=COMMITTED_AT_ONCE,
        pieces=(way("topics.partitions", "topics.partitions", items=COMMITTED_AT_ONCE, one_by_one=True),),
        rights=both(
            READ_GROUP,
            on_topics(
                m.OffsetCommitResponse.OffsetCommitResponseTopic,
                m.OffsetCommitResponse.OffsetCommitResponsePartition,
                ids_from=10,
            ),
        ),
    ),
    Api(11, "JoinGroup", (0, 9), ask, waits=True, is_large=_has_many_members, rights=WAIT_IN_GROUP),
    Api(HEARTBEAT, "Heartbeat", (0, 4), ask, short=heartbeat_short, rights=READ_GROUP),
    Api(13, "LeaveGroup", (0, 5), ask, rights=READ_GROUP),
    # As many assignments as there are members; a microsecond for each.
    Api(
        14,
        "SyncGroup",
        (0, 5),
        ask,
        waits=True,
        whole_max=20_000,
        is_large=_has_large_assignment,
        rights=WAIT_IN_GROUP,
    ),
    Api(
        15,
        "DescribeGroups",
        (0, 6),
        each_of("groups", "groups"),
        lists="groups",
        pieces=(way("groups", "groups", once=str, one_by_one=True),),
        is_large=_describes_many_members,
        rights=on_groups(Operation.DESCRIBE, "groups", "groups", m.DescribeGroupsResponse.DescribedGroup),
    ),
    Api(
        42,
        "DeleteGroups",
        (0, 3),
        each_of("groups_names", "results"),
        lists="groups_names",
        pieces=(way("groups_names", "results", once=str, one_by_one=True),),
        rights=on_groups(
            Operation.DELETE,
            "groups_names",
            "results",
            partial(m.DeleteGroupsResponse.DeletableGroupResult, error_message=NOT_AUTHORISED),
        ),
    ),
    Api(
        47,
        "OffsetDelete",
        (0, 0),
        ask,
        lists="topics",
        at_once=COMMITTED_AT_ONCE,
        pieces=(way("topics.partitions", "topics.partitions", items=COMMITTED_AT_ONCE, one_by_one=True),),
        rights=both(
            on_group(Operation.DELETE),
            on_topics(
                m.OffsetDeleteResponse.OffsetDeleteResponseTopic, m.OffsetDeleteResponse.OffsetDeleteResponsePartition
            ),
        ),
    ),
    Api(
        CONSUMER_HEARTBEAT,
        "ConsumerGroupHeartbeat",
        (0, 1),
        assigned_by_us,
        short=consumer_heartbeat_short,
        # What a member owns, partition by partition, is only held against what it was given.
        whole_max=50_000,
        rights=both(READ_GROUP, Rights(SEE_TOPICS, _subscribes)),
    ),
    Api(
        69,
        "ConsumerGroupDescribe",
        (0, 1),
        each_of("group_ids", "groups"),
        lists="group_ids",
        pieces=(way("group_ids", "groups", once=str, one_by_one=True),),
        rights=both(
            on_groups(Operation.DESCRIBE, "group_ids", "groups", m.ConsumerGroupDescribeResponse.DescribedGroup),
            Rights(SEE_TOPICS, _hide_groups_of_hidden_topics),
        ),
    ),
)
