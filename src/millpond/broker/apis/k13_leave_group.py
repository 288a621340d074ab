"""LeaveGroup (13), versions 0-5: members leave at once instead of timing out.

1 throttle time · 3 several members, static ones too · 4 flexible · 5 a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.LeaveGroupRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=13, name="LeaveGroup", versions=(0, 5), handle=handle)
