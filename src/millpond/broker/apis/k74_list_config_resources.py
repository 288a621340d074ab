"""ListConfigResources (74), versions 0-1: the resources that have settings.

0 client metrics only · 1 by type; no type means all. Groups and client metrics are listed only if settings are set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext


def handle(metadata: MetadataContext, call: Call, request: m.ListConfigResourcesRequest) -> Outcome:
    known = set(ResourceType)
    wanted = {ResourceType.CLIENT_METRICS} if call.version == 0 else set(request.resource_types) or known
    if not wanted <= known:
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    resources: list[tuple[str, int]] = []
    if ResourceType.TOPIC in wanted:
        resources += [(name, ResourceType.TOPIC) for name in metadata.image.topics]
    resources += [
        (str(node_id), kind)
        for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        if kind in wanted
        for node_id in sorted(metadata.image.brokers)
    ]
    named = {ResourceType.CLIENT_METRICS, ResourceType.GROUP} & wanted
    resources += [(each.name, each.type) for each in metadata.image.configs if each.type in named]
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for name, kind in resources
        ]
    )


API = Api(
    key=74, name="ListConfigResources", versions=(0, 1), handle=handle, rights=on_cluster(Operation.DESCRIBE_CONFIGS)
)
