"""DeleteAcls (31), versions 1-3: delete the ACLs that match filters, and list them.

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
from millpond.metadata.acls import Acl, AclFilter, DeletedAcls, decide_delete_acls
from millpond.metadata.decision import Verdict
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, SecurityContext


def handle(security: SecurityContext, metadata: MetadataContext, call: Call, request: m.DeleteAclsRequest) -> Outcome:
    if not security.access.is_on:
        return _refuse_all(request, Verdict(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    filters = [
        AclFilter(
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )
        for each in request.filters
    ]
    decided = metadata.controller.submit(lambda image: decide_delete_acls(image, filters))
    return decided.map(_answer).recover(Refused, lambda refused: _refuse_all(request, Verdict.of(refused)))


def _refuse_all(request: m.DeleteAclsRequest, verdict: Verdict) -> m.DeleteAclsResponse:
    return _answer([DeletedAcls(verdict) for _ in request.filters])


def _answer(deleted: Sequence[DeletedAcls]) -> m.DeleteAclsResponse:
    return m.DeleteAclsResponse(
        filter_results=[
            m.DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=each.verdict.code,
                error_message=each.verdict.message,
                matching_acls=[_deleted(acl) for acl in each.acls],
            )
            for each in deleted
        ]
    )


def _deleted(acl: Acl) -> m.DeleteAclsResponse.DeleteAclsMatchingAcl:
    return m.DeleteAclsResponse.DeleteAclsMatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


API = Api(
    key=31,
    name="DeleteAcls",
    versions=(1, 3),
    handle=handle,
    lists="filters",
    at_controller=True,
    forward=relay_change,
    pieces=(way("filters", "filter_results"),),
    rights=on_cluster(Operation.ALTER, lambda _, request, code: _refuse_all(request, Verdict(code, NOT_AUTHORISED))),
)
