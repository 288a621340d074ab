"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in and leave a group by the new protocol (KIP-848).

1 subscription by pattern, the client makes its own member id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, Need, Rights, Screened, both, may_topic
from millpond.broker.coordinator_calls.group_calls import ask_group
from millpond.broker.coordinator_calls.group_rights import READ_GROUP, may_read_group
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.features import GROUP_VERSION
from millpond.wire import messages as m
from millpond.wire.kernel import short_consumer_heartbeat

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext, SecurityContext
    from millpond.broker.requests.connection import Connection

CONSUMER_HEARTBEAT: Final = 68
SEE_TOPIC = Need(Operation.DESCRIBE, AclResource.TOPIC)


def handle(
    metadata: MetadataContext, coordination: CoordinationContext, call: Call, request: m.ConsumerGroupHeartbeatRequest
) -> Outcome:
    # At group.version 1 every node can read the records of such groups.
    if metadata.image.features.get(GROUP_VERSION, 0):
        return ask_group(coordination, call, request.group_id, request)
    return m.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="group.version is 0: use group.protocol=classic, or raise it (millpond cluster upgrade)",
    )


def consumer_heartbeat_short(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    coordination: CoordinationContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """Answers the heartbeat of a member that has nothing to report and whose assignment is unchanged."""
    beat = short_consumer_heartbeat(frame)
    if beat is None or not may_read_group(security, connection, beat.group_id):
        return False
    shard_host = coordination.groups.active_shard_host(beat.group_id)
    if shard_host is None or not metadata.image.features.get(GROUP_VERSION, 0):
        return False
    interval_ms = shard_host.tell(
        lambda shard, now_ms: shard.consumer_beat(
            beat.group_id, beat.member_id, beat.epoch, beat.client_id, connection.host, now_ms
        )
    )
    if interval_ms is None:
        return False
    connection.reply_frame(beat.reply(interval_ms))
    node.requests.on_answer(CONSUMER_HEARTBEAT, connection.arrived_us)
    return True


def _screen(metadata: MetadataContext, call: Call, request: m.ConsumerGroupHeartbeatRequest) -> Screened | None:
    """A member cannot subscribe to topics that it may not describe."""
    if call.is_unlimited:
        return None
    if not all(call.demand(*SEE_TOPIC, name) for name in request.subscribed_topic_names or ()):
        return Screened(
            None, m.ConsumerGroupHeartbeatResponse(error_code=SEE_TOPIC.refusal, error_message=NOT_AUTHORISED)
        )

    def adjust(response: m.ConsumerGroupHeartbeatResponse) -> m.ConsumerGroupHeartbeatResponse:
        # A pattern may also match topics that the member may not describe.
        if response.assignment is not None:
            response.assignment.topic_partitions = [
                each
                for each in response.assignment.topic_partitions
                if may_topic(metadata, call, Operation.DESCRIBE, None, each.topic_id)
            ]
        return response

    return Screened(request, adjust=adjust)


API = Api(
    key=CONSUMER_HEARTBEAT,
    name="ConsumerGroupHeartbeat",
    versions=(0, 1),
    handle=handle,
    short=consumer_heartbeat_short,
    # The partitions that a member owns are only compared with its assignment.
    whole_max=50_000,
    rights=both(READ_GROUP, Rights((SEE_TOPIC,), _screen)),
)
