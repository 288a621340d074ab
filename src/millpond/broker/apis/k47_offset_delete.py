"""OffsetDelete (47), version 0: forget committed offsets of topics that the group no longer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.api import Api, Call, Outcome
from millpond.broker.group_calls import ask_group
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.OffsetDeleteRequest) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


API = Api(key=47, name="OffsetDelete", versions=(0, 0), handle=handle, lists="topics")
