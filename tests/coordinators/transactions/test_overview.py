import pytest

from millpond.base.errors import ErrorCode as E
from millpond.base.ids import TopicPartition
from millpond.coordinators.transactions.overview import describe, list_all
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import Transaction
from millpond.wire import messages as m

OPEN = Transaction(
    "pay-1", 9, 3, 1000, 50, State.ONGOING, frozenset({TopicPartition("b", 1), TopicPartition("a", 2)}), 40
)
DONE = Transaction("pay-2", 8, 1, 1000, 50, State.COMPLETE_COMMIT, start_ms=90)
FRESH = Transaction("load", 7, 0, 1000, 50)
ALL = [OPEN, DONE, FRESH]


def names(**filters: object) -> list[str]:
    request = m.ListTransactionsRequest(**{"state_filters": [], "producer_id_filters": [], **filters})  # type: ignore[arg-type]
    response = list_all(ALL, request, 100)
    response.encode(2)
    assert response.error_code == E.NONE
    return [each.transactional_id for each in response.transaction_states]


def test_a_transaction_is_described_whole() -> None:
    got = describe("pay-1", OPEN)
    assert (got.error_code, got.transaction_state, got.producer_id, got.producer_epoch) == (0, "Ongoing", 9, 3)
    assert (got.transaction_timeout_ms, got.transaction_start_time_ms) == (1000, 40)
    assert [(topic.topic, topic.partitions) for topic in got.topics] == [("a", [2]), ("b", [1])]


def test_an_id_that_is_not_there_is_said_so() -> None:
    assert describe("who", None).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert describe("", None).error_code == E.INVALID_REQUEST


def test_without_filters_all_are_listed() -> None:
    assert names() == ["pay-1", "pay-2", "load"]


def test_filters_narrow_together() -> None:
    assert names(state_filters=["Ongoing", "Empty"]) == ["pay-1", "load"]
    assert names(producer_id_filters=[8, 9]) == ["pay-1", "pay-2"]
    assert names(state_filters=["Ongoing"], producer_id_filters=[8]) == []
    assert names(duration_filter=20) == ["pay-1", "load"]
    assert names(duration_filter=60) == ["load"]
    assert names(transactional_id_pattern="pay-.*") == ["pay-1", "pay-2"]
    assert names(transactional_id_pattern="pay") == []


def test_unknown_states_are_named_and_let_nothing_through() -> None:
    request = m.ListTransactionsRequest(state_filters=["Sleeping"], producer_id_filters=[])
    response = list_all(ALL, request, 100)
    assert (response.unknown_state_filters, response.transaction_states) == (["Sleeping"], [])


@pytest.mark.parametrize("pattern", ["(", "(a+)+", "(a|aa)*b", ".*.*.*.*x", "a" * 300, "(.*){9}"])
def test_wrong_or_dangerous_patterns_are_refused(pattern: str) -> None:
    request = m.ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern=pattern)
    assert list_all(ALL, request, 100).error_code == E.INVALID_REGULAR_EXPRESSION
