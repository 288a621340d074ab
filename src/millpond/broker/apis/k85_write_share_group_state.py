"""WriteShareGroupState (85), versions 0-1: changes to the delivery state of share partitions; from their leaders.

1 the number of finished records, which the coordinator counts itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.coordination.share_requests import refuse_all
from millpond.broker.coordinator_calls.share_calls import ONLY_NODES, handle_for_nodes
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext


def handle(coordination: CoordinationContext, call: Call, request: m.WriteShareGroupStateRequest) -> Outcome:
    if not call.is_own and not coordination.share_state.is_latest(call.client_id or "", call.connection.number):
        return refuse_all(request, Refused(ErrorCode.NOT_COORDINATOR, "the leader has repeated this write since"))
    return handle_for_nodes(coordination, call, request)


API = Api(
    key=85,
    name="WriteShareGroupState",
    versions=(0, 1),
    handle=handle,
    pieces=(way("topics.partitions", "results.partitions", one_by_one=True),),
    rights=ONLY_NODES,
)
