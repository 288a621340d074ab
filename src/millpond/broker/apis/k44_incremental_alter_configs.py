"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to or subtract from single settings.

1 flexible. Log levels belong to this node and last until it stops; everything else is forwarded to the active
controller, which commits it to the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.base.words import quoted
from millpond.broker.administration.config_changes import commit_changes
from millpond.broker.authorization.config_rights import on_settings
from millpond.broker.authorization.required_rights import NOT_AUTHORISED
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.configs import ConfigChange, ResourceChanges, ResourceVerdict, decide_incremental_alter
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.image import Resource
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext


def handle(
    node: NodeContext, metadata: MetadataContext, call: Call, request: m.IncrementalAlterConfigsRequest
) -> Outcome:
    loggers = [_wanted(each) for each in request.resources if each.resource_type == ResourceType.BROKER_LOGGER]
    others = [each for each in request.resources if each.resource_type != ResourceType.BROKER_LOGGER]
    settled = tuple(_change_loggers(node, each, request.validate_only) for each in loggers)
    if metadata.controller.is_active or call.is_from_node or not others:
        return _commit(node, metadata, [_wanted(each) for each in others], request.validate_only, settled)
    sent = m.IncrementalAlterConfigsRequest(resources=others, validate_only=request.validate_only)

    def join(response: m.IncrementalAlterConfigsResponse) -> m.IncrementalAlterConfigsResponse:
        response.responses = [*map(_result, settled), *response.responses]
        return response

    def refuse(refused: Refused) -> m.IncrementalAlterConfigsResponse:
        verdicts = [ResourceVerdict(_wanted(each).resource, Verdict.of(refused)) for each in others]
        return m.IncrementalAlterConfigsResponse(responses=[*map(_result, settled), *map(_result, verdicts)])

    return relay_change(metadata, call, sent).map(join).recover(Refused, refuse)


def _wanted(resource: m.IncrementalAlterConfigsRequest.AlterConfigsResource) -> ResourceChanges:
    return ResourceChanges(
        Resource(resource.resource_type, resource.resource_name),
        tuple(ConfigChange(one.name, one.config_operation, one.value) for one in resource.configs),
    )


def _commit(
    node: NodeContext,
    metadata: MetadataContext,
    wanted: list[ResourceChanges],
    validate_only: bool,
    settled: tuple[ResourceVerdict, ...],
) -> Outcome:
    return commit_changes(
        metadata,
        [each.resource for each in wanted],
        lambda image: decide_incremental_alter(image, node.layers, wanted, validate_only=validate_only),
        m.IncrementalAlterConfigsResponse,
        settled,
    )


def _result(verdict: ResourceVerdict) -> m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse:
    return m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        resource_type=verdict.resource.type,
        resource_name=verdict.resource.name,
        error_code=verdict.verdict.code,
        error_message=verdict.verdict.message,
    )


def _change_loggers(node: NodeContext, wanted: ResourceChanges, validate_only: bool) -> ResourceVerdict:
    try:
        if wanted.resource.name != str(node.node_id):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"this is broker {node.node_id}, not {quoted(wanted.resource.name)}"
            )
        node.loggers.change(wanted.changes, validate_only=validate_only)
    except Refused as refused:
        return ResourceVerdict(wanted.resource, Verdict.of(refused))
    return ResourceVerdict(wanted.resource, OK)


def _refuse(
    resource: m.IncrementalAlterConfigsRequest.AlterConfigsResource, code: ErrorCode
) -> m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse:
    return m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=NOT_AUTHORISED,
    )


API = Api(
    key=44,
    name="IncrementalAlterConfigs",
    versions=(0, 1),
    handle=handle,
    lists="resources",
    pieces=(way("resources", "responses"),),
    rights=on_settings(Operation.ALTER_CONFIGS, _refuse, "responses"),
)
