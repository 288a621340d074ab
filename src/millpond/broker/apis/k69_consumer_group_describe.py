"""ConsumerGroupDescribe (69), versions 0-1: state, epochs, members and assignments of groups of the new protocol.

1 which protocol each member speaks.
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


def handle(broker: Services, call: Call, request: m.ConsumerGroupDescribeRequest) -> Outcome:
    parts = [
        ask_group(broker, call, group_id, m.ConsumerGroupDescribeRequest(group_ids=[group_id]))
        for group_id in dict.fromkeys(request.group_ids)
    ]
    return gather(parts).map(partial(_join, request.include_authorized_operations))


def _join(with_operations: bool, parts: list[m.ConsumerGroupDescribeResponse]) -> m.ConsumerGroupDescribeResponse:
    groups = [each for part in parts for each in part.groups]
    for group in groups:
        if with_operations and not group.error_code:
            group.authorized_operations = ON_GROUP
    return m.ConsumerGroupDescribeResponse(groups=groups)


API = Api(key=69, name="ConsumerGroupDescribe", versions=(0, 1), handle=handle, lists="group_ids")
