"""Heartbeat (12), versions 0-4: a member is alive, and learns of a rebalance from the response.

1 throttle time · 3 static members · 4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.broker.coordinator_calls.group_calls import handle_for_group
from millpond.broker.coordinator_calls.group_rights import READ_GROUP, may_read_group
from millpond.broker.serving.api import Api
from millpond.wire.kernel import short_heartbeat

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, NodeContext, SecurityContext
    from millpond.broker.requests.connection import Connection

HEARTBEAT: Final = 12


def heartbeat_short(
    node: NodeContext,
    security: SecurityContext,
    coordination: CoordinationContext,
    connection: Connection,
    frame: memoryview,
) -> bool:
    """Answers a heartbeat of a group that is not rebalancing."""
    beat = short_heartbeat(frame)
    if beat is None or not may_read_group(security, connection, beat.group_id):
        return False
    shard_host = coordination.groups.active_shard_host(beat.group_id)
    if shard_host is None or not shard_host.tell(
        lambda shard, now_ms: shard.beat(beat.group_id, beat.member_id, beat.generation, now_ms) or None
    ):
        return False
    connection.reply_frame(beat.reply())
    node.requests.on_answer(HEARTBEAT, connection.arrived_us)
    return True


API = Api(
    key=HEARTBEAT,
    name="Heartbeat",
    versions=(0, 4),
    handle=handle_for_group,
    short=heartbeat_short,
    rights=READ_GROUP,
)
