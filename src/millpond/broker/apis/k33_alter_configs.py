"""AlterConfigs (33), versions 0-2: replace all settings of a resource; what is not named returns to its default.

2 flexible. Clients should use IncrementalAlterConfigs (44), which leaves other settings alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import Operation
from millpond.broker.administration.config_changes import commit_changes
from millpond.broker.authorization.config_rights import on_settings
from millpond.broker.authorization.required_rights import NOT_AUTHORISED
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.configs import ResourceConfigs, decide_alter
from millpond.metadata.image import Resource
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.AlterConfigsRequest) -> Outcome:
    wanted = [
        ResourceConfigs(
            Resource(each.resource_type, each.resource_name), tuple((one.name, one.value) for one in each.configs)
        )
        for each in request.resources
    ]
    return commit_changes(
        metadata,
        [each.resource for each in wanted],
        lambda image: decide_alter(image, node.layers, wanted, validate_only=request.validate_only),
        m.AlterConfigsResponse,
    )


def _refuse(
    resource: m.AlterConfigsRequest.AlterConfigsResource, code: ErrorCode
) -> m.AlterConfigsResponse.AlterConfigsResourceResponse:
    return m.AlterConfigsResponse.AlterConfigsResourceResponse(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=NOT_AUTHORISED,
    )


API = Api(
    key=33,
    name="AlterConfigs",
    versions=(0, 2),
    handle=handle,
    lists="resources",
    at_controller=True,
    forward=relay_change,
    pieces=(way("resources", "responses", items=100),),
    rights=on_settings(Operation.ALTER_CONFIGS, _refuse, "responses"),
)
