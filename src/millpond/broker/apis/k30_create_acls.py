"""CreateAcls (30), versions 1-3: allow or deny operations to principals. ACLs that exist already are kept.

1 prefixed patterns · 2 flexible · 3 ACLs of users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.apis.k29_describe_acls import NO_AUTHORIZER
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.metadata.acls import Acl, decide_create_acls
from millpond.metadata.decision import Verdict
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext


def handle(
    node: NodeContext, security: SecurityContext, metadata: MetadataContext, call: Call, request: m.CreateAclsRequest
) -> Outcome:
    if not security.access.is_on:
        return _refuse_all(request, Verdict(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    wanted = [
        Acl(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in request.creations
    ]
    decided = metadata.controller.submit(lambda image: decide_create_acls(image, wanted, node.entropy))
    return decided.map(_answer).recover(Refused, lambda refused: _refuse_all(request, Verdict.of(refused)))


def _refuse_all(request: m.CreateAclsRequest, verdict: Verdict) -> m.CreateAclsResponse:
    return _answer([verdict for _ in request.creations])


def _answer(verdicts: Sequence[Verdict]) -> m.CreateAclsResponse:
    return m.CreateAclsResponse(
        results=[
            m.CreateAclsResponse.AclCreationResult(error_code=each.code, error_message=each.message)
            for each in verdicts
        ]
    )


API = Api(
    key=30,
    name="CreateAcls",
    versions=(1, 3),
    handle=handle,
    lists="creations",
    at_controller=True,
    forward=relay_change,
    pieces=(way("creations", "results"),),
    rights=on_cluster(Operation.ALTER, lambda _, request, code: _refuse_all(request, Verdict(code, NOT_AUTHORISED))),
)
