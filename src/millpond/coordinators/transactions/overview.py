"""DescribeTransactions and ListTransactions: transactional ids as tools see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond.base.errors import ErrorCode
from millpond.coordinators.patterns import ANOTHER, TYPED_CHARACTERS, BadPattern, compiled
from millpond.coordinators.transactions.records import by_topic
from millpond.coordinators.transactions.states import BY_LABEL
from millpond.coordinators.transactions.transaction import Transaction
from millpond.wire import messages as m

PATTERN_LENGTH_MAX = 256
MATCHED_LENGTH_MAX = 256
STEPS_MAX = 500
WALKED_STEPS_MAX = 50_000
"""The work limit for one pattern; normal patterns take some thousand steps."""


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
    """The transactions that pass every filter; an empty filter matches everything."""
    try:
        matches = _matcher(request.transactional_id_pattern)
        return _list_matching(transactions, request, now_ms, matches)
    except BadPattern:
        return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)


def _list_matching(
    transactions: Iterable[Transaction],
    request: m.ListTransactionsRequest,
    now_ms: int,
    matches: Callable[[str], bool],
) -> m.ListTransactionsResponse:
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


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """BadPattern, now or during a match, if the pattern is invalid or too expensive."""
    if not pattern:
        return lambda _: True
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise BadPattern("the pattern is too long")
    machine = compiled(pattern, TYPED_CHARACTERS)
    if len(machine.steps) > STEPS_MAX:
        raise BadPattern("the pattern has too many repetitions")

    def matches(transactional_id: str) -> bool:
        if len(transactional_id) > MATCHED_LENGTH_MAX:
            return False
        if not (transactional_id.isascii() and transactional_id.isprintable()):
            transactional_id = "".join(each if each in TYPED_CHARACTERS else ANOTHER for each in transactional_id)
        if machine.steps_walked > WALKED_STEPS_MAX:
            raise BadPattern("matching the pattern takes too long")
        return machine.matches(transactional_id)

    return matches
