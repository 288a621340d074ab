"""CreateDelegationToken (38), versions 1-3: a short-lived credential for a user.

2 flexible · 3 for another user, which needs a right. Refused on PLAINTEXT listeners, and to clients that logged in
with a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.base.principal import Principal
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, by_handler
from millpond.broker.authorization.token_requests import lifetimes, objection, owner_of
from millpond.broker.forwarding.envelope import relay_enveloped
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.decision import Verdict
from millpond.metadata.tokens import CreatedToken, NewToken, decide_create_token
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext

REQUESTER_FROM = 3


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    call: Call,
    request: m.CreateDelegationTokenRequest,
) -> Outcome:
    refused = _refusal(security, call, request)
    if refused is not None:
        return refused
    owner = owner_of(call, request.owner_principal_type, request.owner_principal_name)
    wanted = NewToken(
        # A repeated attempt finds the token that the first created, whichever controller did.
        token_id=call.change_id or node.entropy.uuid().hex,
        owner=str(owner),
        requester=str(call.principal),
        renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers),
        lifetime_ms=request.max_lifetime_ms,
        needs_user=call.principal.by_password,
    )
    now_ms = node.clock.wall_ms()
    decided = metadata.controller.submit(lambda image: decide_create_token(image, wanted, lifetimes(node), now_ms))
    return decided.recover(Refused, lambda refused: CreatedToken(Verdict.of(refused))).map(
        lambda created: _answer(security, owner, call, created)
    )


def forward(
    security: SecurityContext, metadata: MetadataContext, call: Call, request: m.CreateDelegationTokenRequest
) -> Later[m.CreateDelegationTokenResponse]:
    refused = _refusal(security, call, request)
    return done(refused) if refused is not None else relay_enveloped(metadata, call, request)


def _refusal(
    security: SecurityContext, call: Call, request: m.CreateDelegationTokenRequest
) -> m.CreateDelegationTokenResponse | None:
    owner = owner_of(call, request.owner_principal_type, request.owner_principal_name)
    code = objection(security, call)
    if code is None and call.asker is None and owner != call.principal:
        may = call.demand(Operation.CREATE_TOKENS, AclResource.USER, str(owner))
        code = None if may else ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return None if code is None else _answer(security, owner, call, CreatedToken(Verdict(code)))


def _answer(
    security: SecurityContext, owner: Principal, call: Call, created: CreatedToken
) -> m.CreateDelegationTokenResponse:
    token = created.token
    response = m.CreateDelegationTokenResponse(
        error_code=created.verdict.code,
        principal_type=owner.kind,
        principal_name=owner.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )
    if call.version >= REQUESTER_FROM:
        response.token_requester_principal_type = call.principal.kind
        response.token_requester_principal_name = call.principal.name
    if token is not None:
        response.issue_timestamp_ms = token.issue_timestamp
        response.expiry_timestamp_ms = token.expiration_timestamp
        response.max_timestamp_ms = token.max_timestamp
        response.token_id = token.token_id
        response.hmac = security.token_proofs.proof_of(token.token_id) or b""
    return response


API = Api(
    key=38,
    name="CreateDelegationToken",
    versions=(1, 3),
    handle=handle,
    lists="renewers",
    at_controller=True,
    forward=forward,
    rights=by_handler(Need(Operation.CREATE_TOKENS, AclResource.USER)),
)
