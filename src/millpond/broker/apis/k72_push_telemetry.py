"""PushTelemetry (72), version 0: a client's metrics.

Gap: not accepted. Not advertised; a client that sends some anyway is answered UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from millpond.base.errors import ErrorCode
from millpond.broker.authorization.required_rights import FREE
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m


def handle(call: Call, request: m.PushTelemetryRequest) -> Outcome:
    return m.PushTelemetryResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


API = Api(key=72, name="PushTelemetry", versions=(0, 0), handle=handle, is_advertised=False, rights=FREE)
