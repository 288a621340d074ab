"""Rights to read or change configs: on the topic or group itself, and on the cluster for all other resources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened, split
from millpond.metadata.records import ResourceType

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext
    from millpond.broker.requests.call import Call

_OF_THEIR_OWN = {ResourceType.TOPIC: AclResource.TOPIC, ResourceType.GROUP: AclResource.GROUP}


def on_settings(operation: Operation, refuse: Callable[[Any, ErrorCode], Any], into: str) -> Rights:
    """Requires the operation on each resource of the request."""
    needs = tuple(Need(operation, each) for each in (AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER))

    def kind_of(resource: Any) -> AclResource:
        return _OF_THEIR_OWN.get(resource.resource_type, AclResource.CLUSTER)

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        def is_allowed(resource: Any) -> bool:
            kind = kind_of(resource)
            name = CLUSTER_NAME if kind is AclResource.CLUSTER else resource.resource_name
            return call.demand(operation, kind, name)

        return split(
            request,
            "resources",
            is_allowed,
            lambda resource: refuse(resource, Need(operation, kind_of(resource)).refusal),
            into,
        )

    return Rights(needs, screen)
