"""DescribeTransactions and ListTransactions: what people see of the transactional ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from millpond.base.errors import ErrorCode
from millpond.coordinators.transactions.records import by_topic
from millpond.coordinators.transactions.states import BY_LABEL
from millpond.coordinators.transactions.transaction import Transaction
from millpond.wire import messages as m

PATTERN_LENGTH_MAX = 256
REPEATS_MAX = 3
MATCHED_LENGTH_MAX = 256
"""Python's regular expressions can take exponential time. Bounded like this, they cannot."""

_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_REPEAT = re.compile(r"[*+{]")


def describe(
    transactional_id: str, transaction: Transaction | None
) -> m.DescribeTransactionsResponse.TransactionState:
    if not transactional_id or transaction is None:
        error = ErrorCode.INVALID_REQUEST if not transactional_id else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return m.DescribeTransactionsResponse.TransactionState(error_code=error, transactional_id=transactional_id)
    return m.DescribeTransactionsResponse.TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=transaction.state.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            m.DescribeTransactionsResponse.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(transaction.partitions).items()
        ],
    )


def list_all(
    transactions: Iterable[Transaction], request: m.ListTransactionsRequest, now_ms: int
) -> m.ListTransactionsResponse:
    """Those that pass every filter; an empty filter lets everything through."""
    matches = _matcher(request.transactional_id_pattern)
    if matches is None:
        return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states = {BY_LABEL[name] for name in request.state_filters if name in BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    shown = [
        m.ListTransactionsResponse.TransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state.label
        )
        for each in transactions
        if (not request.state_filters or each.state in states)
        and (not producer_ids or each.producer_id in producer_ids)
        and (request.duration_filter < 0 or now_ms - each.start_ms > request.duration_filter)
        and matches(each.transactional_id)
    ]
    return m.ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[name for name in request.state_filters if name not in BY_LABEL],
        transaction_states=shown,
    )


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    """None when the pattern is wrong, or could take too long."""
    if not pattern:
        return lambda _: True
    if len(pattern) > PATTERN_LENGTH_MAX or _REPEATED_GROUP.search(pattern):
        return None
    if len(_REPEAT.findall(pattern)) > REPEATS_MAX:
        return None
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError):
        return None
    return lambda transactional_id: (
        len(transactional_id) <= MATCHED_LENGTH_MAX and compiled.fullmatch(transactional_id) is not None
    )
