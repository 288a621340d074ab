"""EndTxn (26), versions 0-5: commit or abort a transaction.

2 PRODUCER_FENCED · 3 flexible · 4 abortable errors · 5 transactions v2: the reply carries the next epoch. The
response is sent once the outcome is committed and, if that takes only a moment, the markers are written to the
partitions; otherwise the markers follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import done
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import whole
from millpond.broker.coordinator_calls.transaction_calls import ask_transaction, with_markers
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext


def handle(coordination: CoordinationContext, call: Call, request: m.EndTxnRequest) -> Outcome:
    # Never retried later: by then it could end the next transaction, which has the same epoch (v1).
    ended = ask_transaction(coordination, call, request.transactional_id, request, _fail, lambda _: ErrorCode.NONE)
    return ended.chain(
        lambda response: (
            done(response) if response.error_code else with_markers(coordination, request.transactional_id, response)
        )
    )


def _fail(refused: Refused) -> m.EndTxnResponse:
    return m.EndTxnResponse(error_code=refused.code, producer_id=-1, producer_epoch=-1)


RIGHTS = whole(
    Operation.WRITE,
    AclResource.TRANSACTIONAL_ID,
    lambda request: request.transactional_id,
    lambda _call, _request, code: _fail(Refused(code)),
)

API = Api(key=26, name="EndTxn", versions=(0, 5), handle=handle, rights=RIGHTS)
