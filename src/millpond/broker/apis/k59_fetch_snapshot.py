"""FetchSnapshot (59), versions 0-1: the bytes of a snapshot of the metadata, from a position on.

1 the follower's directory.
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


def handle(broker: Services, call: Call, request: m.FetchSnapshotRequest) -> Outcome:
    return broker.controller.host.answer(request)


API = Api(key=59, name="FetchSnapshot", versions=(0, 1), handle=handle, is_advertised=False)
