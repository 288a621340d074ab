"""GetTelemetrySubscriptions (71), version 0: the client metrics that the broker subscribes to.

Gap: it subscribes to none. Not advertised; a client that asks anyway is answered UNSUPPORTED_VERSION and stops.
"""

from __future__ import annotations

from millpond.base.errors import ErrorCode
from millpond.broker.authorization.required_rights import FREE
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m


def handle(call: Call, request: m.GetTelemetrySubscriptionsRequest) -> Outcome:
    return m.GetTelemetrySubscriptionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        client_instance_id=request.client_instance_id,
        accepted_compression_types=[],
        requested_metrics=[],
    )


API = Api(key=71, name="GetTelemetrySubscriptions", versions=(0, 0), handle=handle, is_advertised=False, rights=FREE)
