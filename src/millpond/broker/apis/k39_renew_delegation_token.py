"""RenewDelegationToken (39), versions 1-2: extend a token's life, up to its maximum lifetime.

2 flexible. The owner and the renewers may do this. The token's HMAC in the request proves knowledge of the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.later import Later, done
from millpond.broker.authorization.required_rights import by_handler
from millpond.broker.authorization.token_requests import lifetimes, objection
from millpond.broker.forwarding.envelope import relay_enveloped
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.decision import Decision, Verdict
from millpond.metadata.image import Image
from millpond.metadata.tokens import TokenTime, decide_renew_token
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext, SecurityContext


def handle(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    call: Call,
    request: m.RenewDelegationTokenRequest,
) -> Outcome:
    code = objection(security, call)
    if code is not None:
        return _answer(TokenTime(Verdict(code)))
    proof, who, now_ms = bytes(request.hmac), str(call.principal), node.clock.wall_ms()

    def decide(image: Image) -> Decision[TokenTime]:
        token_id = security.token_proofs.id_of(proof, image.tokens)
        return decide_renew_token(image, token_id, who, request.renew_period_ms, lifetimes(node), now_ms)

    decided = metadata.controller.submit(decide)
    return decided.recover(Refused, lambda refused: TokenTime(Verdict.of(refused))).map(_answer)


def forward(
    security: SecurityContext, metadata: MetadataContext, call: Call, request: m.RenewDelegationTokenRequest
) -> Later[m.RenewDelegationTokenResponse]:
    code = objection(security, call)
    return done(_answer(TokenTime(Verdict(code)))) if code is not None else relay_enveloped(metadata, call, request)


def _answer(time: TokenTime) -> m.RenewDelegationTokenResponse:
    return m.RenewDelegationTokenResponse(error_code=time.verdict.code, expiry_timestamp_ms=time.until_ms)


API = Api(
    key=39,
    name="RenewDelegationToken",
    versions=(1, 2),
    handle=handle,
    at_controller=True,
    forward=forward,
    rights=by_handler(),
)
