"""JoinGroup (11), versions 0-9: a consumer joins its group, or comes back after a rebalance began.

1 rebalance timeout · 4 a member id is handed out first · 5 static members · 6 flexible · 7 protocol type · 8 a reason
· 9 the leader may be told not to assign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.JoinGroupRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=11, name="JoinGroup", versions=(0, 9), handle=handle)
