"""Rights to read or change configs: on the topic or group itself, and on the cluster for all other resources.

To name a dead-letter topic for a group takes the right to write there, too, because the broker then does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened, split
from millpond.config.group import DEAD_LETTER_TOPIC
from millpond.metadata.records import ResourceType

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext
    from millpond.broker.requests.call import Call

_OF_THEIR_OWN = {ResourceType.TOPIC: AclResource.TOPIC, ResourceType.GROUP: AclResource.GROUP}
_LETTERS = Need(Operation.WRITE, AclResource.TOPIC)


def on_settings(operation: Operation, refuse: Callable[[Any, ErrorCode], Any], into: str) -> Rights:
    """Requires the operation on each resource of the request."""
    is_change = operation is Operation.ALTER_CONFIGS
    needs = tuple(Need(operation, each) for each in (AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER))

    def needs_of(resource: Any) -> Iterator[tuple[Need, str]]:
        kind = _OF_THEIR_OWN.get(resource.resource_type, AclResource.CLUSTER)
        yield Need(operation, kind), CLUSTER_NAME if kind is AclResource.CLUSTER else resource.resource_name
        if is_change and kind is AclResource.GROUP:
            for each in resource.configs:
                if each.name == DEAD_LETTER_TOPIC.name and each.value:
                    yield _LETTERS, each.value.strip()

    def screen(metadata: MetadataContext, call: Call, request: Any) -> Screened | None:
        missing: dict[int, Need] = {}

        def is_allowed(resource: Any) -> bool:
            for need, name in needs_of(resource):
                if not call.demand(*need, name):
                    missing[id(resource)] = need
                    return False
            return True

        return split(
            request, "resources", is_allowed, lambda resource: refuse(resource, missing[id(resource)].refusal), into
        )

    return Rights((*needs, _LETTERS) if is_change else needs, screen)
