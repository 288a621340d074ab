"""AlterClientQuotas (49), versions 0-1: set or remove quotas of users, client ids and addresses.

1 flexible. Each entity is changed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.decision import Verdict
from millpond.metadata.quotas import EntityChanges, QuotaChange, decide_alter_quotas
from millpond.metadata.records import QuotaPart
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

Response = m.AlterClientQuotasResponse


def handle(metadata: MetadataContext, call: Call, request: m.AlterClientQuotasRequest) -> Outcome:
    wanted = _wanted(request)
    dry = request.validate_only
    return (
        metadata.controller.submit(lambda image: decide_alter_quotas(image.quotas, wanted, validate_only=dry))
        .map(lambda verdicts: _answer(wanted, verdicts))
        .recover(Refused, lambda refused: _answer(wanted, [Verdict.of(refused)] * len(wanted)))
    )


def _wanted(request: m.AlterClientQuotasRequest) -> list[EntityChanges]:
    return [
        EntityChanges(
            tuple(QuotaPart(part.entity_type, part.entity_name) for part in entry.entity),
            tuple(QuotaChange(change.key, None if change.remove else change.value) for change in entry.ops),
        )
        for entry in request.entries
    ]


def _refuse(call: Call, request: m.AlterClientQuotasRequest, code: ErrorCode) -> m.AlterClientQuotasResponse:
    wanted = _wanted(request)
    return _answer(wanted, [Verdict(code, NOT_AUTHORISED)] * len(wanted))


def _answer(wanted: Sequence[EntityChanges], verdicts: Sequence[Verdict]) -> m.AlterClientQuotasResponse:
    return Response(
        entries=[
            Response.EntryData(
                error_code=verdict.code,
                error_message=verdict.message,
                entity=[
                    Response.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in each.entity
                ],
            )
            for each, verdict in zip(wanted, verdicts, strict=True)
        ]
    )


API = Api(
    key=49,
    name="AlterClientQuotas",
    versions=(0, 1),
    handle=handle,
    lists="entries",
    at_controller=True,
    forward=relay_change,
    pieces=(way("entries", "entries"),),
    rights=on_cluster(Operation.ALTER_CONFIGS, _refuse),
)
