"""DeleteGroups (42), versions 0-2: forget empty groups and their offsets.

2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.later import gather
from millpond.broker.coordination.group_calls import ask_group
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.DeleteGroupsRequest) -> Outcome:
    parts = [
        ask_group(broker, call, group_id, m.DeleteGroupsRequest(groups_names=[group_id]))
        for group_id in dict.fromkeys(request.groups_names)
    ]
    return gather(parts).map(_join)


def _join(parts: list[m.DeleteGroupsResponse]) -> m.DeleteGroupsResponse:
    return m.DeleteGroupsResponse(results=[each for part in parts for each in part.results])


API = Api(key=42, name="DeleteGroups", versions=(0, 2), handle=handle, lists="groups_names")
