"""AddOffsetsToTxn (25), versions 0-4: a producer announces that its transaction will commit offsets of a group.

2 PRODUCER_FENCED · 3 flexible · 4 abortable errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import both, whole
from millpond.broker.coordinator_calls.transaction_calls import ask_transaction, opened
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext


def handle(coordination: CoordinationContext, call: Call, request: m.AddOffsetsToTxnRequest) -> Outcome:
    return opened(coordination, coordination.groups).chain(
        lambda _: ask_transaction(coordination, call, request.transactional_id, request, _fail)
    )


def _fail(refused: Refused) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(error_code=refused.code)


RIGHTS = both(
    whole(Operation.WRITE, AclResource.TRANSACTIONAL_ID, lambda request: request.transactional_id),
    whole(Operation.READ, AclResource.GROUP, lambda request: request.group_id),
)

API = Api(key=25, name="AddOffsetsToTxn", versions=(0, 4), handle=handle, rights=RIGHTS)
