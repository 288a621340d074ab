"""ApiVersions (18), versions 0-5: which APIs this broker serves, in which versions.

0 the list · 1 throttle time · 3 flexible, the client says what software it is, features · 4 feature minima of zero ·
5 the client names the cluster and the broker it expects (KIP-1242).
A name or version of the client's software that is not made of letters, digits, dots and dashes is refused.
A client that expected another broker or another cluster is answered REBOOTSTRAP_REQUIRED: its metadata is stale, or
DNS or a load balancer routed the connection elsewhere. A client that names only one of the two is refused.
A client newer than us opens with a version that we do not know; it is answered in version 0 with error 35 and the
versions of ApiVersions alone, so that it asks again for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.broker.authorization.required_rights import FREE
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Encoded, Outcome, Response
from millpond.broker.serving.api import Api
from millpond.metadata.features import KRAFT_VERSION
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, ServedApi

NAMED_FROM = 3
ZERO_MINIMA_FROM = 4
"""Clients that know only version 3 fail at a minimum of zero (KAFKA-17011)."""
EXPECTED_BROKER_FROM = 5

NO_NODE = -1

SOFTWARE_LENGTH_MAX = 100
"""Only this much of each is kept per connection: there may be very many connections."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def handle(node: NodeContext, metadata: MetadataContext, call: Call, request: m.ApiVersionsRequest) -> Outcome:
    if call.version >= NAMED_FROM:
        error = _check(node, metadata, call.version, request)
        if error:
            return m.ApiVersionsResponse(error_code=error, api_keys=[])
        software = (request.client_software_name, request.client_software_version)
        call.connection.client_software = " ".join(each[:SOFTWARE_LENGTH_MAX] for each in software)
        if node.loggers.are_detailed:
            node.journal(
                "a client connects",
                peer=call.connection.link.peer,
                client=call.client_id,
                software=call.connection.client_software,
            )
    if call.meter is not None:
        # The response may carry a throttle time.
        return _answer(node, metadata, call.version)
    return known_answer(node, metadata, call.version)


def known_answer(node: NodeContext, metadata: MetadataContext, version: int) -> Encoded:
    """The same bytes for every client, until the metadata changes."""
    made_of = metadata.controller.applied_offset, metadata.controller.kraft_version
    return node.api_answers.encoded(version, made_of, lambda: _answer(node, metadata, version))


def _answer(node: NodeContext, metadata: MetadataContext, version: int) -> m.ApiVersionsResponse:
    response = describe(node.apis())
    if version >= NAMED_FROM:
        _add_features(response, metadata, version)
    return response


def _check(node: NodeContext, metadata: MetadataContext, version: int, request: m.ApiVersionsRequest) -> ErrorCode:
    if not (_is_name(request.client_software_name) and _is_name(request.client_software_version)):
        return ErrorCode.INVALID_REQUEST
    if version < EXPECTED_BROKER_FROM:
        return ErrorCode.NONE
    if (request.cluster_id is None) != (request.node_id == NO_NODE):
        return ErrorCode.INVALID_REQUEST
    # A node that has just started may not know its cluster's id yet, and cannot compare it.
    known = metadata.image.cluster_id
    if request.cluster_id is None or known is None:
        return ErrorCode.NONE
    is_expected = request.cluster_id == known and request.node_id == node.node_id
    return ErrorCode.NONE if is_expected else ErrorCode.REBOOTSTRAP_REQUIRED


def _is_name(text: str) -> bool:
    return _SOFTWARE.fullmatch(text) is not None


def _add_features(response: m.ApiVersionsResponse, metadata: MetadataContext, version: int) -> None:
    """The finalized features: clients use transactions v2 only if it is listed here."""
    response.supported_features = [
        m.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.newest)
        for name, levels in metadata.controller.supported.items()
        if levels.lowest or version >= ZERO_MINIMA_FROM
    ]
    response.finalized_features = [
        m.ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in {**metadata.image.features, KRAFT_VERSION: metadata.controller.kraft_version}.items()
        if level
    ]
    if metadata.image.features:
        # The image's offset: a client keeps the newest epoch that it has seen.
        response.finalized_features_epoch = metadata.controller.applied_offset


def refuse(version: int, body: memoryview) -> Response:
    # Clients retry only if nothing else is listed: franz-go takes a longer list for the final response, without
    # features.
    return Encoded(describe([API], ErrorCode.UNSUPPORTED_VERSION).encode(0))


def describe(apis: Iterable[ServedApi], error: ErrorCode = ErrorCode.NONE) -> m.ApiVersionsResponse:
    keys = []
    for api in apis:
        if not api.is_advertised:
            continue
        low, high = api.advertised or api.versions
        keys.append(m.ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=low, max_version=high))
    return m.ApiVersionsResponse(error_code=error, api_keys=keys)


API = Api(key=18, name="ApiVersions", versions=(0, 5), handle=handle, refuse=refuse, rights=FREE)
