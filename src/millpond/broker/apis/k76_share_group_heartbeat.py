"""ShareGroupHeartbeat (76), version 1: join, stay in and leave a share group (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, Need, Rights, Screened, both
from millpond.broker.coordinator_calls.group_calls import ask_group
from millpond.broker.coordinator_calls.group_rights import READ_GROUP
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.features import SHARE_VERSION
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext

SEE_TOPIC = Need(Operation.DESCRIBE, AclResource.TOPIC)


def handle(
    metadata: MetadataContext, coordination: CoordinationContext, call: Call, request: m.ShareGroupHeartbeatRequest
) -> Outcome:
    # At share.version 1 every node can read the records of such groups.
    if metadata.image.features.get(SHARE_VERSION, 0):
        return ask_group(coordination, call, request.group_id, request)
    return m.ShareGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="share.version is 0: raise it once all nodes support share groups (millpond cluster upgrade)",
    )


def _screen(metadata: MetadataContext, call: Call, request: m.ShareGroupHeartbeatRequest) -> Screened | None:
    """A member cannot subscribe to topics that it may not describe."""
    if all(call.demand(*SEE_TOPIC, name) for name in request.subscribed_topic_names or ()):
        return None
    return Screened(None, m.ShareGroupHeartbeatResponse(error_code=SEE_TOPIC.refusal, error_message=NOT_AUTHORISED))


API = Api(
    key=76,
    name="ShareGroupHeartbeat",
    versions=(1, 1),
    handle=handle,
    lists="subscribed_topic_names",
    rights=both(READ_GROUP, Rights((SEE_TOPIC,), _screen)),
)
