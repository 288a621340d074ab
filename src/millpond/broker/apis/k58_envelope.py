"""Envelope (58), version 0: a node sends on what its client asks of the controller, and says who that client is.

For nodes alone, and only for what the controller answers by who asks: delegation tokens. Not advertised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode
from millpond.base.later import Later
from millpond.broker.apis import k38_create_delegation_token, k39_renew_delegation_token, k40_expire_delegation_token
from millpond.broker.links.envelope import principal_from_bytes
from millpond.broker.links.to_controller import is_refused_by_follower
from millpond.broker.security.rights import for_nodes
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.config.node import MAX_REQUEST_ITEMS
from millpond.wire import messages as m
from millpond.wire.header import decode_request_header, response_header

if TYPE_CHECKING:
    from millpond.broker.services import Services

WITHIN: Final[dict[int, Api]] = {
    each.key: each
    for each in (k38_create_delegation_token.API, k39_renew_delegation_token.API, k40_expire_delegation_token.API)
}


def handle(broker: Services, call: Call, request: m.EnvelopeRequest) -> Outcome:
    if not call.is_from_node or request.request_principal is None:
        return m.EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    asker = principal_from_bytes(bytes(request.request_principal))
    frame = memoryview(bytes(request.request_data))
    header = decode_request_header(frame)
    api = WITHIN.get(header.api_key)
    if api is None or not api.serves(header.api_version):
        return m.EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    version = header.api_version
    decode = m.request_class(api.key).decode
    inner, _ = decode(frame, version, header.body_position, broker.settings[MAX_REQUEST_ITEMS])
    outcome = api.handle(broker, Call(None, version, header.client_id, asker=asker), inner)

    def fold(response: Any) -> m.EnvelopeResponse:
        if is_refused_by_follower(response):
            return m.EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        head = response_header(api.key, version, header.correlation_id)
        return m.EnvelopeResponse(error_code=ErrorCode.NONE, response_data=head + response.encode(version))

    return outcome.map(fold) if isinstance(outcome, Later) else fold(outcome)


API = Api(
    key=58,
    name="Envelope",
    versions=(0, 0),
    handle=handle,
    is_advertised=False,
    at_controller=True,
    rights=for_nodes(),
)
