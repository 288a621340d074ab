"""ListGroups (16), versions 0-5: all groups of this coordinator.

1 throttle time · 3 flexible · 4 filter by state · 5 filter by type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened, seen
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext


def handle(coordination: CoordinationContext, call: Call, request: m.ListGroupsRequest) -> Outcome:
    # A list without the groups that are still being loaded would be incomplete.
    loading = coordination.groups.is_loading
    return m.ListGroupsResponse(
        error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE,
        groups=[
            group
            for shard_host in coordination.groups.shard_hosts()
            for group in shard_host.shard.list_groups(request.states_filter, request.types_filter)
        ],
    )


def _screen(metadata: MetadataContext, call: Call, request: m.ListGroupsRequest) -> Screened | None:
    """The right to describe the cluster shows all groups."""
    if call.may(Operation.DESCRIBE, AclResource.CLUSTER, CLUSTER_NAME):
        return None
    assert _SEEN.screen is not None
    return _SEEN.screen(metadata, call, request)


_SEEN = seen(Need(Operation.DESCRIBE, AclResource.GROUP), of="groups", named=lambda group: group.group_id)

API = Api(key=16, name="ListGroups", versions=(0, 5), handle=handle, rights=Rights(_SEEN.needs, _screen))
