"""IncrementalAlterConfigs (44), versions 0-1: set, delete, append to or subtract from single settings.

1 flexible. Gap: groups and client metrics have no settings yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.api import Api, Call, Outcome
from millpond.metadata.configs import ConfigChange, ResourceChanges, ResourceVerdict, decide_incremental_alter
from millpond.metadata.decision import Verdict
from millpond.metadata.image import Resource
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.IncrementalAlterConfigsRequest) -> Outcome:
    wanted = [
        ResourceChanges(
            Resource(each.resource_type, each.resource_name),
            tuple(ConfigChange(one.name, one.config_operation, one.value) for one in each.configs),
        )
        for each in request.resources
    ]
    decided = broker.controller.submit(
        lambda image: decide_incremental_alter(image, broker.layers, wanted, validate_only=request.validate_only)
    )
    return decided.map(_answer).recover(
        Refused,
        lambda refused: _answer(tuple(ResourceVerdict(each.resource, Verdict.of(refused)) for each in wanted)),
    )


def _answer(verdicts: tuple[ResourceVerdict, ...]) -> m.IncrementalAlterConfigsResponse:
    return m.IncrementalAlterConfigsResponse(
        responses=[
            m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                resource_type=each.resource.type,
                resource_name=each.resource.name,
                error_code=each.verdict.code,
                error_message=each.verdict.message,
            )
            for each in verdicts
        ]
    )


API = Api(key=44, name="IncrementalAlterConfigs", versions=(0, 1), handle=handle, lists="resources")
