"""DescribeClientQuotas (48), versions 0-1: the quotas that match a filter, as they were set.

1 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, on_cluster
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.quotas import Wanted, find_quotas
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

Response = m.DescribeClientQuotasResponse

EXACT, DEFAULT, ANY = 0, 1, 2
"""The match types of the protocol."""


def handle(metadata: MetadataContext, call: Call, request: m.DescribeClientQuotasRequest) -> Outcome:
    try:
        wanted = [_wanted(each) for each in request.components]
        found = find_quotas(metadata.image.quotas, wanted, strict=request.strict)
    except Refused as refused:
        return Response(error_code=refused.code, error_message=refused.message, entries=None)
    return Response(
        entries=[
            Response.EntryData(
                entity=[
                    Response.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entity
                ],
                values=[Response.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in found
        ]
    )


def _wanted(component: m.DescribeClientQuotasRequest.ComponentData) -> Wanted:
    name = component.match
    if component.match_type == EXACT and name is not None:
        return Wanted(component.entity_type, name)
    if component.match_type in (DEFAULT, ANY) and name is None:
        return Wanted(component.entity_type, is_any=component.match_type == ANY)
    raise Refused(
        ErrorCode.INVALID_REQUEST,
        f"a part is asked for by its name ({EXACT}), as the default ({DEFAULT}) or any ({ANY}), only the first "
        f"has a name; {component.match_type} {'without' if name is None else 'with'} one is none of them",
    )


def _refuse(call: Call, request: m.DescribeClientQuotasRequest, code: ErrorCode) -> m.DescribeClientQuotasResponse:
    return Response(error_code=code, error_message=NOT_AUTHORISED, entries=None)


API = Api(
    key=48,
    name="DescribeClientQuotas",
    versions=(0, 1),
    handle=handle,
    lists="components",
    rights=on_cluster(Operation.DESCRIBE_CONFIGS, _refuse),
)
