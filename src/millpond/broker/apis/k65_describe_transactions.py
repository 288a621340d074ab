"""DescribeTransactions (65), version 0: state, age and partitions of transactions by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.errors import Refused
from millpond.broker.api import Api, Call, Outcome
from millpond.broker.asking import ask, gather
from millpond.coordinators.shard import Request
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.broker import Broker


def handle(broker: Broker, call: Call, request: m.DescribeTransactionsRequest) -> Outcome:
    waits = [
        ask(broker.transactions, call, each, m.DescribeTransactionsRequest(transactional_ids=[each]), _fail)
        for each in dict.fromkeys(request.transactional_ids)
    ]
    return gather(waits, _join)


def _fail(request: Request, refused: Refused) -> m.DescribeTransactionsResponse:
    body = request.body
    assert isinstance(body, m.DescribeTransactionsRequest)
    return m.DescribeTransactionsResponse(
        transaction_states=[
            m.DescribeTransactionsResponse.TransactionState(transactional_id=each, error_code=refused.code)
            for each in body.transactional_ids
        ]
    )


def _join(parts: list[m.DescribeTransactionsResponse]) -> m.DescribeTransactionsResponse:
    return m.DescribeTransactionsResponse(
        transaction_states=[each for part in parts for each in part.transaction_states]
    )


API = Api(key=65, name="DescribeTransactions", versions=(0, 0), handle=handle, lists="transactional_ids")
