"""BrokerHeartbeat (63), versions 0-1: a broker is alive, and learns whether it is unfenced or may shut down.

1 offline log directories: a node has one, and names it while its disk is full. Not advertised: for brokers only. A
private tag in the response lists all brokers whose disks are full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.brokers import Heartbeat, HeartbeatReply
from millpond.metadata.decision import Verdict
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def handle(metadata: MetadataContext, call: Call, request: m.BrokerHeartbeatRequest) -> Outcome:
    beat = Heartbeat(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        # On the wire it is the last known offset, not the next one.
        applied_offset=request.current_metadata_offset + 1,
        wants_fence=request.want_fence,
        wants_shutdown=request.want_shut_down,
        is_full=bool(request.offline_log_dirs),
    )
    replied = metadata.heartbeats.heartbeat(beat)
    return replied.recover(Refused, lambda refused: HeartbeatReply(Verdict.of(refused))).map(
        lambda reply: _answer(metadata, reply)
    )


def _answer(metadata: MetadataContext, reply: HeartbeatReply) -> m.BrokerHeartbeatResponse:
    return m.BrokerHeartbeatResponse(
        error_code=reply.verdict.code,
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.may_shut_down,
        full_brokers=sorted(metadata.image.full_brokers),
    )


API = Api(
    key=63,
    name="BrokerHeartbeat",
    versions=(0, 1),
    handle=handle,
    is_advertised=False,
    at_controller=True,
    rights=for_nodes(),
)
