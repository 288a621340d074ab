"""DescribeAcls (29), versions 1-3: the ACLs that match a filter.

1 prefixed patterns · 2 flexible · 3 ACLs of users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.acls import AclFilter, fault_of_filter, grouped
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, SecurityContext

NO_AUTHORIZER = "no authorizer is enabled: set authorizer.class.name, or use a listener that authenticates"


def handle(
    security: SecurityContext, metadata: MetadataContext, call: Call, request: m.DescribeAclsRequest
) -> Outcome:
    if not security.access.is_on:
        return m.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    fault = fault_of_filter(wanted)
    if fault is not None:
        return m.DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=fault)
    by_resource = grouped(acl for _, acl in metadata.image.acls.fitting(wanted))
    return m.DescribeAclsResponse(
        resources=[
            m.DescribeAclsResponse.DescribeAclsResource(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[
                    m.DescribeAclsResponse.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in acls
                ],
            )
            for (kind, name, pattern_type), acls in by_resource.items()
        ]
    )


API = Api(key=29, name="DescribeAcls", versions=(1, 3), handle=handle, rights=on_cluster(Operation.DESCRIBE))
