"""SyncGroup (14), versions 0-5: the leader hands in the assignment, every member gets its part.

1 throttle time · 3 static members · 4 flexible · 5 protocol type and name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.SyncGroupRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=14, name="SyncGroup", versions=(0, 5), handle=handle)
