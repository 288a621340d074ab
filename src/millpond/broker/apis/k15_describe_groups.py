"""DescribeGroups (15), versions 0-6: state, protocol and members of classic groups.

3 authorised operations · 4 static members · 5 flexible · 6 error messages, unknown groups are an error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.base.later import gather
from millpond.broker.coordination.group_calls import ask_group
from millpond.broker.serving.api import Api
from millpond.broker.serving.authorised_operations import ON_GROUP
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.DescribeGroupsRequest) -> Outcome:
    parts = [
        ask_group(broker, call, group_id, m.DescribeGroupsRequest(groups=[group_id]))
        for group_id in dict.fromkeys(request.groups)
    ]
    return gather(parts).map(partial(_join, request.include_authorized_operations))


def _join(with_operations: bool, parts: list[m.DescribeGroupsResponse]) -> m.DescribeGroupsResponse:
    groups = [each for part in parts for each in part.groups]
    for group in groups:
        if with_operations and not group.error_code:
            group.authorized_operations = ON_GROUP
    return m.DescribeGroupsResponse(groups=groups)


API = Api(key=15, name="DescribeGroups", versions=(0, 6), handle=handle, lists="groups")
