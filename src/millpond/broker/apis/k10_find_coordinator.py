"""FindCoordinator (10), versions 0-6: who coordinates a group or a transaction.

1 key type · 3 flexible · 4 several keys at once · 5 transactions v2 · 6 share groups. It is advertised because
librdkafka drops lz4 compression without it.
Gap: there are no coordinators yet; every key is answered with COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.broker.api import Api, Call, Outcome
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker

MANY_KEYS_FROM = 4
MESSAGE = "groups and transactions are not served by this version"


def handle(broker: Broker, call: Call, request: m.FindCoordinatorRequest) -> Outcome:
    if call.version < MANY_KEYS_FROM:
        return m.FindCoordinatorResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=MESSAGE, node_id=-1, port=-1
        )
    return m.FindCoordinatorResponse(
        coordinators=[
            m.FindCoordinatorResponse.Coordinator(
                key=key, node_id=-1, port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=MESSAGE
            )
            for key in request.coordinator_keys
        ]
    )


API = Api(key=10, name="FindCoordinator", versions=(0, 6), handle=handle)
