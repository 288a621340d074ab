"""ListTransactions (66), versions 0-2: all transactions of this coordinator.

1 filter by duration · 2 filter by a pattern of ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import gather
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, seen
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext


def handle(coordination: CoordinationContext, call: Call, request: m.ListTransactionsRequest) -> Outcome:
    if coordination.transactions.is_loading:
        # A list without the transactions that are still being loaded would be incomplete.
        return m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    parts = [
        shard_host.ask(call, request).recover(Refused, _fail)
        for shard_host in coordination.transactions.shard_hosts()
    ]
    return gather(parts).map(_join)


def _fail(refused: Refused) -> m.ListTransactionsResponse:
    return m.ListTransactionsResponse(error_code=refused.code)


def _join(parts: list[m.ListTransactionsResponse]) -> m.ListTransactionsResponse:
    response = m.ListTransactionsResponse()
    for part in parts:
        response.error_code = response.error_code or part.error_code
        response.unknown_state_filters = part.unknown_state_filters
        response.transaction_states += part.transaction_states
    return response


RIGHTS = seen(
    Need(Operation.DESCRIBE, AclResource.TRANSACTIONAL_ID),
    of="transaction_states",
    named=lambda state: state.transactional_id,
)

API = Api(key=66, name="ListTransactions", versions=(0, 2), handle=handle, rights=RIGHTS)
