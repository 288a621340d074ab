"""DescribeCluster (60), versions 0-2: the cluster's id, its brokers and who is the controller.

1 endpoint type · 2 fenced brokers. Gap: there are no controllers apart from the brokers, so the endpoint type
"controllers" is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.authorized_operations import operations_on_cluster
from millpond.broker.authorization.required_rights import Need, by_handler
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

BROKERS = 1


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.DescribeClusterRequest) -> Outcome:
    if request.endpoint_type != BROKERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="only the endpoints of brokers can be described",
            endpoint_type=request.endpoint_type,
            brokers=[],
        )
    return m.DescribeClusterResponse(
        cluster_id=metadata.image.cluster_id or "",
        controller_id=metadata.controller_id(),
        brokers=[
            m.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node_id, host=host, port=port, rack=rack, is_fenced=metadata.image.brokers[node_id].fenced
            )
            for node_id, host, port, rack in node.addresses_for(
                call.connection, with_fenced=request.include_fenced_brokers
            )
        ],
        cluster_authorized_operations=operations_on_cluster(
            call, is_asked=request.include_cluster_authorized_operations
        ),
    )


API = Api(
    key=60,
    name="DescribeCluster",
    versions=(0, 2),
    handle=handle,
    rights=by_handler(Need(Operation.DESCRIBE, AclResource.CLUSTER)),
)
