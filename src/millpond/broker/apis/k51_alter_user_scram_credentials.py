"""AlterUserScramCredentials (51), version 0: add, change and remove the credentials of users.

A password never arrives here: clients send it salted and iterated. Connections of a user whose credential is changed
or removed are closed soon after; with the last credential the user's delegation tokens are removed, too. A user may
be named once per request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.rights import Operation
from millpond.broker.authorization.required_rights import on_cluster
from millpond.broker.forwarding.change_relay import relay_change
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.metadata.decision import Verdict
from millpond.metadata.scram import AlteredUser, Deletion, Upsertion, decide_alter_credentials
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

SECRET_BITS = 512
USERS_MAX = 1000
"""A request may change at most this many users."""


def handle(
    node: NodeContext, metadata: MetadataContext, call: Call, request: m.AlterUserScramCredentialsRequest
) -> Outcome:
    deletions = [Deletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        Upsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in request.upsertions
    ]
    users = list(dict.fromkeys([*(each.user for each in deletions), *(each.user for each in upsertions)]))
    if len(users) > USERS_MAX:
        why = f"{len(users)} users are changed at once, at most {USERS_MAX} can be"
        return _refuse_all(users, Verdict(ErrorCode.INVALID_REQUEST, why))
    secret = node.entropy.below(1 << SECRET_BITS).to_bytes(SECRET_BITS // 8)
    decided = metadata.controller.submit(lambda image: decide_alter_credentials(image, deletions, upsertions, secret))
    return decided.map(_answer).recover(Refused, lambda refused: _refuse_all(users, Verdict.of(refused)))


def _answer(users: Sequence[AlteredUser]) -> m.AlterUserScramCredentialsResponse:
    return m.AlterUserScramCredentialsResponse(
        results=[
            m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=each.user, error_code=each.verdict.code, error_message=each.verdict.message
            )
            for each in users
        ]
    )


def _refuse_all(users: Sequence[str], verdict: Verdict) -> m.AlterUserScramCredentialsResponse:
    return _answer([AlteredUser(user, verdict) for user in users])


def _not_authorised(
    call: Call, request: m.AlterUserScramCredentialsRequest, code: ErrorCode
) -> m.AlterUserScramCredentialsResponse:
    users = [*(each.name for each in request.deletions), *(each.name for each in request.upsertions)]
    return _refuse_all(list(dict.fromkeys(users)), Verdict(code))


API = Api(
    key=51,
    name="AlterUserScramCredentials",
    versions=(0, 0),
    handle=handle,
    at_controller=True,
    forward=relay_change,
    # The audit log names each user, in the same turn of the loop.
    whole_max=1_000,
    rights=on_cluster(Operation.ALTER, _not_authorised),
)
