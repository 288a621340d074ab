"""ListConfigResources (74), versions 0-1: which resources have settings.

0 client metrics only, of which there are none · 1 by type; no type means all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.broker.api import Api, Call, Outcome
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
KNOWN = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


def handle(broker: Broker, call: Call, request: m.ListConfigResourcesRequest) -> Outcome:
    wanted = (CLIENT_METRICS,) if call.version == 0 else tuple(request.resource_types) or KNOWN
    if any(kind not in KNOWN for kind in wanted):
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    found = []
    if TOPIC in wanted:
        found += [(name, int(ResourceType.TOPIC)) for name in broker.image.topics]
    for kind in (BROKER, BROKER_LOGGER):
        if kind in wanted:
            found.append((str(broker.node_id), kind))
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            for name, kind in found
        ]
    )


API = Api(key=74, name="ListConfigResources", versions=(0, 1), handle=handle)
