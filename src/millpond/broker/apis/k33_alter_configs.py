"""AlterConfigs (33), versions 0-2: replace all settings of a resource; what is not named returns to its default.

2 flexible. Clients should use IncrementalAlterConfigs (44), which leaves other settings alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.api import Api, Call, Outcome
from millpond.metadata.configs import ResourceConfigs, ResourceVerdict, decide_alter
from millpond.metadata.decision import Verdict
from millpond.metadata.image import Resource
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.AlterConfigsRequest) -> Outcome:
    wanted = [
        ResourceConfigs(
            Resource(each.resource_type, each.resource_name), tuple((one.name, one.value) for one in each.configs)
        )
        for each in request.resources
    ]
    decided = broker.controller.submit(
        lambda image: decide_alter(image, broker.layers, wanted, validate_only=request.validate_only)
    )
    return decided.map(_answer).recover(
        Refused,
        lambda refused: _answer(tuple(ResourceVerdict(each.resource, Verdict.of(refused)) for each in wanted)),
    )


def _answer(verdicts: tuple[ResourceVerdict, ...]) -> m.AlterConfigsResponse:
    return m.AlterConfigsResponse(
        responses=[
            m.AlterConfigsResponse.AlterConfigsResourceResponse(
                resource_type=each.resource.type,
                resource_name=each.resource.name,
                error_code=each.verdict.code,
                error_message=each.verdict.message,
            )
            for each in verdicts
        ]
    )


API = Api(key=33, name="AlterConfigs", versions=(0, 2), handle=handle, lists="resources")
