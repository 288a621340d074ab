"""ConsumerGroupDescribe (69), versions 0-1: state, epochs, members and assignments of groups of the new protocol.

1 which protocol each member speaks.
Gap: authorised operations are not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.asking import gather
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.ConsumerGroupDescribeRequest) -> Outcome:
    waits = [
        ask_group(broker, call, group_id, m.ConsumerGroupDescribeRequest(group_ids=[group_id]))
        for group_id in dict.fromkeys(request.group_ids)
    ]
    return gather(waits, _join)


def _join(parts: list[m.ConsumerGroupDescribeResponse]) -> m.ConsumerGroupDescribeResponse:
    return m.ConsumerGroupDescribeResponse(groups=[each for part in parts for each in part.groups])


API = Api(key=69, name="ConsumerGroupDescribe", versions=(0, 1), handle=handle, lists="group_ids")
