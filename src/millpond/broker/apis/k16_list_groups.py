"""ListGroups (16), versions 0-5: all groups of this coordinator.

1 throttle time · 3 flexible · 4 filter by state · 5 filter by type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.ListGroupsRequest) -> Outcome:
    return m.ListGroupsResponse(
        groups=[
            group
            for home in broker.groups.homes()
            for group in home.shard.list_groups(request.states_filter, request.types_filter)
        ]
    )


API = Api(key=16, name="ListGroups", versions=(0, 5), handle=handle)
