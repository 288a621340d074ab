"""A client's authorized operations, as the bit fields of Metadata and the Describe APIs. Without an authorizer, all.

A client that does not request them gets `NOT_ASKED_FOR`, the protocol's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.rights import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from millpond.broker.requests.call import Call

NOT_ASKED_FOR: Final = -(1 << 31)

_SETTINGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
OPERATIONS: Final = {
    AclResource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        *_SETTINGS,
    ),
    AclResource.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_SETTINGS),
    AclResource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
        *_SETTINGS,
    ),
}
"""The operations that apply to each resource type."""

_ALL: Final = {
    resource: sum(1 << operation for operation in operations) for resource, operations in OPERATIONS.items()
}


def operations_on(call: Call, resource: AclResource, name: str) -> int:
    """The operations that the client may perform on this resource."""
    if call.is_unlimited:
        return _ALL[resource]
    return sum(1 << operation for operation in OPERATIONS[resource] if call.may(operation, resource, name))


def operations_on_cluster(call: Call, *, is_asked: bool) -> int:
    """The client's operations on the cluster; none without DESCRIBE on it."""
    if not is_asked:
        return NOT_ASKED_FOR
    if not call.may(Operation.DESCRIBE, AclResource.CLUSTER, CLUSTER_NAME):
        return 0
    return operations_on(call, AclResource.CLUSTER, CLUSTER_NAME)
