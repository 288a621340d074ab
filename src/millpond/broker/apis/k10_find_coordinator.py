"""FindCoordinator (10), versions 0-6: who coordinates a group or a transaction.

1 key type · 3 flexible · 4 several keys at once · 5 transactions v2 · 6 share groups. The internal topic of the
coordinator comes into being when it is first asked for.
Gap: share groups are answered with COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.broker.api import Api
from millpond.broker.call import Call
from millpond.broker.replies import Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services

GROUP, TRANSACTION = 0, 1
MANY_KEYS_FROM = 4


def handle(broker: Services, call: Call, request: m.FindCoordinatorRequest) -> Outcome:
    keys = request.coordinator_keys if call.version >= MANY_KEYS_FROM else [request.key]
    if request.key_type not in (GROUP, TRANSACTION):
        return _answer(broker, call, keys, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    coordination = broker.groups if request.key_type == GROUP else broker.transactions
    answer = partial(_answer, broker, call, keys)
    if coordination.is_open:
        return answer(ErrorCode.NONE)
    return broker.open_coordination(coordination).map(
        lambda _: answer(ErrorCode.NONE if coordination.is_open else ErrorCode.COORDINATOR_NOT_AVAILABLE)
    )


def _answer(broker: Services, call: Call, keys: list[str], code: ErrorCode) -> m.FindCoordinatorResponse:
    node_id, host, port = -1, "", -1
    # Kafka says NONE to those who ask for one key, and nothing to those who ask for several.
    message = "NONE" if call.version < MANY_KEYS_FROM else ""
    if code:
        message = "the coordinator's internal topic could not be created"
    if not code:
        node_id, host, port, _ = broker.addresses_for(call.connection)[0]
    if call.version < MANY_KEYS_FROM:
        return m.FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=node_id, host=host, port=port
        )
    return m.FindCoordinatorResponse(
        coordinators=[
            m.FindCoordinatorResponse.Coordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=message
            )
            for key in keys
        ]
    )


API = Api(key=10, name="FindCoordinator", versions=(0, 6), handle=handle)
