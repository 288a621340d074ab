"""Envelope (58), version 0: a node forwards a client's request to the controller, with the client's principal.

For nodes only, and only for requests whose result depends on the client: delegation tokens, and changes of partitions
by clients with a quota. Not advertised.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode
from millpond.base.later import Later
from millpond.broker.apis import (
    k19_create_topics,
    k20_delete_topics,
    k37_create_partitions,
    k38_create_delegation_token,
    k39_renew_delegation_token,
    k40_expire_delegation_token,
)
from millpond.broker.authorization.required_rights import for_nodes
from millpond.broker.forwarding.envelope import principal_from_bytes
from millpond.broker.peers.controller_channel import is_refused_by_follower
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.config.node import MAX_REQUEST_ITEMS
from millpond.wire import messages as m
from millpond.wire.header import decode_request_header, response_header

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext

FORWARDED: Final = frozenset(
    each.API.key
    for each in (
        k19_create_topics,
        k20_delete_topics,
        k37_create_partitions,
        k38_create_delegation_token,
        k39_renew_delegation_token,
        k40_expire_delegation_token,
    )
)
"""The APIs whose requests an envelope may carry."""


def handle(
    node: NodeContext, security: SecurityContext, metadata: MetadataContext, call: Call, request: m.EnvelopeRequest
) -> Outcome:
    if not call.is_from_node or request.request_principal is None:
        return m.EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    asker = principal_from_bytes(bytes(request.request_principal))
    frame = memoryview(bytes(request.request_data))
    header = decode_request_header(frame)
    api: Api | None = node.find_api(header.api_key) if header.api_key in FORWARDED else None
    if api is None or not api.serves(header.api_version):
        return m.EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not metadata.controller.is_active:
        return m.EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    version = header.api_version
    decode = m.request_class(api.key).decode
    # A node forwards a request with many items in pieces.
    items_max = min(node.settings[MAX_REQUEST_ITEMS], api.whole_max)
    inner, _ = decode(frame, version, header.body_position, items_max)
    inner_call = Call(None, version, header.client_id, asker=asker, change_id=call.change_id)
    outcome = _serve(node, security, metadata, api, inner_call, inner)

    def fold(response: Any) -> m.EnvelopeResponse:
        if is_refused_by_follower(response):
            return m.EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
        head = response_header(api.key, version, header.correlation_id)
        return m.EnvelopeResponse(error_code=ErrorCode.NONE, response_data=head + response.encode(version))

    return outcome.map(fold) if isinstance(outcome, Later) else fold(outcome)


def _serve(
    node: NodeContext, security: SecurityContext, metadata: MetadataContext, api: Api, call: Call, request: Any
) -> Outcome:
    """Holds the request to the client's quota, which the controller keeps."""
    serve = partial(api.handle, call)
    meter = security.quotas.meter_for(call.principal, call.client_id) if security.quotas.is_on else None
    if api.mutations is None or meter is None or meter.mutations is None:
        outcome: Outcome = serve(request)
        return outcome
    bucket = meter.mutations
    screened = api.mutations.screen(node, metadata, call, bucket, request)
    outcome = serve(request) if screened is None else screened.served(serve)

    def tell(response: Any) -> Any:
        response.throttle_time_ms = bucket.wait_ms(node.clock.monotonic_ms())
        return response

    return outcome.map(tell) if isinstance(outcome, Later) else tell(outcome)


API = Api(
    key=58,
    name="Envelope",
    versions=(0, 0),
    handle=handle,
    is_advertised=False,
    at_controller=True,
    rights=for_nodes(),
)
