"""BrokerRegistration (62), versions 0-4: a started broker registers with the controller.

2 log directories · 3 the epoch of its last incarnation, if that shut down cleanly · 4 features from 0 on. Not
advertised: for brokers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.data_folder.identity import cluster_name, is_outlived
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.brokers import Registered, Registration
from millpond.metadata.decision import Verdict
from millpond.metadata.image import NO_DIRECTORY
from millpond.metadata.records import BrokerEndpoint, BrokerFeature
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.BrokerRegistrationRequest) -> Outcome:
    known = cluster_name(metadata.image.cluster_id, metadata.image.rescues)
    if metadata.controller.is_active and request.cluster_id not in ("", known):
        has_changed = known is not None and is_outlived(request.cluster_id, by=known)
        code = ErrorCode.REBOOTSTRAP_REQUIRED if has_changed else ErrorCode.INCONSISTENT_CLUSTER_ID
        return m.BrokerRegistrationResponse(error_code=code)
    wanted = Registration(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        end_points=tuple(
            BrokerEndpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners
        ),
        rack=request.rack or None,
        directory_id=request.log_dirs[0] if request.log_dirs else NO_DIRECTORY,
        previous_epoch=request.previous_broker_epoch,
        features=tuple(
            BrokerFeature(each.name, each.min_supported_version, each.max_supported_version)
            for each in request.features
        ),
    )
    if wanted.broker_id == node.node_id or call.is_own:
        # This node's own registration, or one that it was to forward when it became the controller itself.
        registered = metadata.heartbeats.register(wanted)
    else:
        named = metadata.controller.name_voters_for(wanted, call.connection.link.local_host)
        registered = named.chain(lambda _: metadata.heartbeats.register(wanted))
    return registered.recover(Refused, lambda refused: Registered(Verdict.of(refused))).map(
        lambda reply: m.BrokerRegistrationResponse(error_code=reply.verdict.code, broker_epoch=reply.broker_epoch)
    )


API = Api(
    key=62,
    name="BrokerRegistration",
    versions=(0, 4),
    handle=handle,
    is_advertised=False,
    at_controller=True,
    rights=for_nodes(or_admins=True),
)
