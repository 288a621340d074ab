"""DescribeDelegationToken (41), versions 1-3: the tokens that one may see.

2 flexible · 3 who asked for them. Those of one's own and those that one may renew; others with the right to describe
the token, or the tokens of its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.security.rights import Need, by_handler
from millpond.broker.security.token_requests import objection
from millpond.broker.serving.api import Api
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.metadata.records import DelegationTokenRecord
from millpond.metadata.tokens import is_of
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services

REQUESTER_FROM = 3
Described = m.DescribeDelegationTokenResponse.DescribedDelegationToken


def handle(broker: Services, call: Call, request: m.DescribeDelegationTokenRequest) -> Outcome:
    code = objection(broker, call)
    if code is not None:
        return m.DescribeDelegationTokenResponse(error_code=code, tokens=[])
    owners = (
        None
        if request.owners is None
        else {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    )
    seen = [
        token
        for token in broker.image.tokens
        if (owners is None or not owners.isdisjoint((token.owner, *token.renewers))) and _may_see(call, token)
    ]
    return m.DescribeDelegationTokenResponse(
        error_code=ErrorCode.NONE, tokens=[_described(broker, call.version, token) for token in seen]
    )


def _may_see(call: Call, token: DelegationTokenRecord) -> bool:
    return (
        is_of(token, str(call.principal))
        or call.may(Operation.DESCRIBE, AclResource.DELEGATION_TOKEN, token.token_id)
        or call.may(Operation.DESCRIBE_TOKENS, AclResource.USER, token.owner)
    )


def _described(broker: Services, version: int, token: DelegationTokenRecord) -> Described:
    owner, requester = Principal.parse(token.owner), Principal.parse(token.requester)
    renewers = [Principal.parse(each) for each in token.renewers]
    described = Described(
        principal_type=owner.kind,
        principal_name=owner.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=broker.token_proofs.proof_of(token.token_id) or b"",
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
    rights=by_handler(
        Need(Operation.DESCRIBE, AclResource.DELEGATION_TOKEN), Need(Operation.DESCRIBE_TOKENS, AclResource.USER)
    ),
)
