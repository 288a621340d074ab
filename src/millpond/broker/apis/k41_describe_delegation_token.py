"""DescribeDelegationToken (41), versions 1-3: the tokens that the client may see.

2 flexible · 3 who requested them. A client sees its own tokens and those that it may renew; others with the right to
describe the token, or the tokens of its owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millpond.base.errors import ErrorCode
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, by_handler
from millpond.broker.authorization.token_requests import objection
from millpond.broker.loop.steps import Steps, in_slices, run_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.records import DelegationTokenRecord
from millpond.metadata.tokens import is_of
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext

REQUESTER_FROM = 3

AT_ONCE_BYTES: Final = 128 << 10
"""Up to this many bytes of tokens are described in one turn of the loop."""

TOKENS_AT_ONCE: Final = 100
"""More tokens are described in slices of this many, between which other requests are served."""

Described = m.DescribeDelegationTokenResponse.DescribedDelegationToken


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    call: Call,
    request: m.DescribeDelegationTokenRequest,
) -> Outcome:
    code = objection(security, call)
    if code is not None:
        return m.DescribeDelegationTokenResponse(error_code=code, tokens=[])
    owners = (
        None
        if request.owners is None
        else {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    )
    if metadata.image.tokens.total.bytes <= AT_ONCE_BYTES:
        return _response(_described_in(security, call, owners, metadata.image.tokens))
    return run_steps(node.clock, _describe(security, metadata, call, owners))


def _describe(
    security: SecurityContext, metadata: MetadataContext, call: Call, owners: set[str] | None
) -> Steps[m.DescribeDelegationTokenResponse]:
    described: list[Described] = []
    for number, tokens in enumerate(in_slices(list(metadata.image.tokens), TOKENS_AT_ONCE)):
        if number:
            yield None
        described += _described_in(security, call, owners, tokens)
    return _response(described)


def _response(described: list[Described]) -> m.DescribeDelegationTokenResponse:
    return m.DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=described)


def _described_in(
    security: SecurityContext, call: Call, owners: set[str] | None, tokens: Iterable[DelegationTokenRecord]
) -> list[Described]:
    return [
        _described(security, call.version, token)
        for token in tokens
        if (owners is None or not owners.isdisjoint((token.owner, *token.renewers))) and _may_see(call, token)
    ]


def _may_see(call: Call, token: DelegationTokenRecord) -> bool:
    return (
        is_of(token, str(call.principal))
        or call.may(Operation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id)
        or call.may(Operation.DESCRIBE_TOKENS, AclResource.USER, token.owner)
    )


def _described(security: SecurityContext, version: int, token: DelegationTokenRecord) -> Described:
    owner, requester = Principal.parse(token.owner), Principal.parse(token.requester)
    renewers = [Principal.parse(each) for each in token.renewers]
    described = Described(
        principal_type=owner.kind,
        principal_name=owner.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=security.token_proofs.proof_of(token.token_id) or b"",
        renewers=[
            m.DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer(
                principal_type=each.kind, principal_name=each.name
            )
            for each in renewers
        ],
    )
    if version >= REQUESTER_FROM:
        described.token_requester_principal_type = requester.kind
        described.token_requester_principal_name = requester.name
    return described


API = Api(
    key=41,
    name="DescribeDelegationToken",
    versions=(1, 3),
    handle=handle,
    lists="owners",
    whole_max=50_000,
    is_large=lambda response: len(response.tokens) > TOKENS_AT_ONCE,
    rights=by_handler(
        Need(Operation.DESCRIBE, AclResource.DELEGATION_TOKEN), Need(Operation.DESCRIBE_TOKENS, AclResource.USER)
    ),
)
