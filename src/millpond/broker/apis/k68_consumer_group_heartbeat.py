"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in, and leave a group by the new protocol (KIP-848).

1 subscription by pattern, the client makes its own member id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.ConsumerGroupHeartbeatRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=68, name="ConsumerGroupHeartbeat", versions=(0, 1), handle=handle)
