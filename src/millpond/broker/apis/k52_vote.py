"""Vote (52), versions 0-2: may another node lead the metadata?

1 the receiver's own id and directory · 2 pre-vote: nothing is promised yet.
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


def handle(broker: Services, call: Call, request: m.VoteRequest) -> Outcome:
    return broker.controller.host.answer(request)


API = Api(key=52, name="Vote", versions=(0, 2), handle=handle, is_advertised=False)
