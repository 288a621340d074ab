"""Heartbeat (12), versions 0-4: a member says that it is alive and learns of a rebalance.

1 throttle time · 3 static members · 4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.HeartbeatRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=12, name="Heartbeat", versions=(0, 4), handle=handle)
