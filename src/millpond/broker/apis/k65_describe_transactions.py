"""DescribeTransactions (65), version 0: state, age and partitions of transactions by id."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.base.errors import Refused
from millpond.base.later import Later
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened, both, on_each
from millpond.broker.coordinator_calls.group_calls import GROUPS_AT_ONCE
from millpond.broker.loop.steps import ask_in_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, MetadataContext, NodeContext


def handle(
    node: NodeContext, coordination: CoordinationContext, call: Call, request: m.DescribeTransactionsRequest
) -> Outcome:
    questions = (partial(_ask_one, coordination, call, each) for each in dict.fromkeys(request.transactional_ids))
    return ask_in_steps(node.clock, questions, GROUPS_AT_ONCE).map(_join)


def _ask_one(coordination: CoordinationContext, call: Call, transactional_id: str) -> Later[Any]:
    body = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    reply = coordination.transactions.ask(call, transactional_id, body)
    return reply.recover(Refused, lambda refused: _fail(transactional_id, refused))


def _fail(transactional_id: str, refused: Refused) -> m.DescribeTransactionsResponse:
    state = m.DescribeTransactionsResponse.TransactionState(
        transactional_id=transactional_id, error_code=refused.code
    )
    return m.DescribeTransactionsResponse(transaction_states=[state])


def _join(parts: list[m.DescribeTransactionsResponse]) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        transaction_states=[each for part in parts for each in part.transaction_states]
    )


def _hide_topics(metadata: MetadataContext, call: Call, request: m.DescribeTransactionsRequest) -> Screened:
    """Lists only those topics of a transaction that the client may see."""

    def adjust(response: m.DescribeTransactionsResponse) -> m.DescribeTransactionsResponse:
        for state in response.transaction_states:
            topics = [each for each in state.topics if call.may(*SEEN, each.topic)]
            state.topics = topics
        return response

    return Screened(request, adjust=adjust)


SEEN = Need(Operation.DESCRIBE, AclResource.TOPIC)
RIGHTS = both(
    on_each(
        Operation.DESCRIBE,
        AclResource.TRANSACTIONAL_ID,
        of="transactional_ids",
        named=str,
        refuse=lambda name, code: m.DescribeTransactionsResponse.TransactionState(
            transactional_id=name, error_code=code
        ),
        into="transaction_states",
    ),
    Rights((SEEN,), _hide_topics),
)

API = Api(
    key=65,
    name="DescribeTransactions",
    versions=(0, 0),
    handle=handle,
    lists="transactional_ids",
    pieces=(way("transactional_ids", "transaction_states", once=str, one_by_one=True),),
    rights=RIGHTS,
)
