"""A client's request, forwarded to the controller with the client's principal because the response depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millpond.base.errors import ErrorCode, MalformedMessage, Refused
from millpond.base.later import Later
from millpond.base.principal import Principal
from millpond.broker.forwarding.change_relay import caught_up
from millpond.broker.peers.controller_channel import Attempts, forward_ms
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext
    from millpond.broker.requests.call import Call

VERSION: Final = 0
NUMBER: Final = 1
_OTHERWISE: Final = "0"
_BY_TOKEN: Final = "1"
_BY_PASSWORD: Final = "2"
"""How a principal was authenticated."""


def ask_for_client(
    metadata: MetadataContext,
    call: Call,
    request: m.Message,
    version: int | None = None,
    attempts: Attempts | None = None,
) -> Later[Any]:
    """The controller's response to a request that creates or deletes partitions. If the client has a quota for these,
    the controller enforces it and needs the client's principal. The version is the client's unless one is given."""
    version = call.version if version is None else version
    if call.meter is not None and call.meter.mutations is not None:
        return _ask_enveloped(metadata, call, request, version, attempts)
    return metadata.controller_channel.ask(request, version, forward_ms(request), attempts=attempts, is_change=True)


def relay_enveloped(metadata: MetadataContext, call: Call, request: m.Message) -> Later[Any]:
    """The controller's response, once what was committed by then is applied here. Refused without a controller."""
    asked = _ask_enveloped(metadata, call, request, call.version)
    return asked.chain(lambda answer: caught_up(metadata).map(lambda _: answer))


def _ask_enveloped(
    metadata: MetadataContext, call: Call, request: m.Message, version: int, attempts: Attempts | None = None
) -> Later[Any]:
    key = request.API_KEY
    assert key is not None
    frame = encode_request_header(key, version, NUMBER, call.client_id) + request.encode(version)
    envelope = m.EnvelopeRequest(
        request_data=frame,
        request_principal=principal_to_bytes(call.principal),
        client_host_address=call.client_host.encode(),
    )

    def unfold(response: m.EnvelopeResponse) -> Any:
        if response.error_code or response.response_data is None:
            raise Refused(ErrorCode(response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
        _, position = decode_response_header(response.response_data, key, version)
        answer, _ = m.response_class(key).decode(response.response_data, version, position)
        return answer

    asked = metadata.controller_channel.ask(envelope, VERSION, forward_ms(request), attempts=attempts, is_change=True)
    return asked.map(unfold)


def principal_to_bytes(principal: Principal) -> bytes:
    how = _BY_TOKEN if principal.by_token else _BY_PASSWORD if principal.by_password else _OTHERWISE
    return f"{how}{principal}".encode()


def principal_from_bytes(data: bytes) -> Principal:
    try:
        text = data.decode()
        found = Principal.parse(text[1:])
    except ValueError:
        raise MalformedMessage("an envelope that does not say who asks") from None
    return Principal(found.kind, found.name, by_token=text[0] == _BY_TOKEN, by_password=text[0] == _BY_PASSWORD)
