"""EndQuorumEpoch (54), versions 0-1: the node that led the metadata leads no more.

1 flexible, candidates with their directories. The first of them stands at once.
For the voters alone: clients are not told of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def handle(broker: Services, call: Call, request: m.EndQuorumEpochRequest) -> Outcome:
    return broker.controller.host.answer(request)


API = Api(key=54, name="EndQuorumEpoch", versions=(0, 1), handle=handle, is_advertised=False)
