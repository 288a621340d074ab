"""LeaveGroup (13), versions 0-5: members leave at once instead of timing out.

1 throttle time · 3 several members, static ones too · 4 flexible · 5 a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.asking import ask
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.LeaveGroupRequest) -> Outcome:
    return ask(broker.groups, call, request.group_id, request, lambda code: m.LeaveGroupResponse(error_code=code))


API = Api(key=13, name="LeaveGroup", versions=(0, 5), handle=handle)
