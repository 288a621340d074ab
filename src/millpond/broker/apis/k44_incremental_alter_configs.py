"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to or subtract from single settings.

1 flexible. Levels of loggers are this node's own and last until it ends; all else is committed to the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.api import Api
from millpond.broker.call import Call
from millpond.broker.config_changes import commit_changes
from millpond.broker.replies import Outcome
from millpond.metadata.configs import ConfigChange, ResourceChanges, ResourceVerdict, decide_incremental_alter
from millpond.metadata.decision import OK, Verdict
from millpond.metadata.image import Resource
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.IncrementalAlterConfigsRequest) -> Outcome:
    wanted = [
        ResourceChanges(
            Resource(each.resource_type, each.resource_name),
            tuple(ConfigChange(one.name, one.config_operation, one.value) for one in each.configs),
        )
        for each in request.resources
    ]
    loggers = [each for each in wanted if each.resource.type == ResourceType.BROKER_LOGGER]
    others = [each for each in wanted if each.resource.type != ResourceType.BROKER_LOGGER]
    return commit_changes(
        broker,
        [each.resource for each in others],
        lambda image: decide_incremental_alter(image, broker.layers, others, validate_only=request.validate_only),
        m.IncrementalAlterConfigsResponse,
        tuple(_change_loggers(broker, each, request.validate_only) for each in loggers),
    )


def _change_loggers(broker: Services, wanted: ResourceChanges, validate_only: bool) -> ResourceVerdict:
    try:
        if wanted.resource.name != str(broker.node_id):
            raise Refused(ErrorCode.INVALID_REQUEST, f"this is broker {broker.node_id}, not {wanted.resource.name!r}")
        broker.loggers.change(wanted.changes, validate_only=validate_only)
    except Refused as refused:
        return ResourceVerdict(wanted.resource, Verdict.of(refused))
    return ResourceVerdict(wanted.resource, OK)


API = Api(key=44, name="IncrementalAlterConfigs", versions=(0, 1), handle=handle, lists="resources")
