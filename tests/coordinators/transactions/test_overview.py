import pytest

from millpond.base.errors import ErrorCode as E
from millpond.base.ids import TopicPartition
from millpond.coordinators.transactions.overview import describe, list_all
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import Transaction
from millpond.wire import messages as m
from support.cpu import least_seconds

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


def listed(ids: list[str], pattern: str) -> list[str] | E:
    """What of these ids fits the pattern."""
    request = m.ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern=pattern)
    response = list_all([Transaction(each, 7, 0, 1000, 50) for each in ids], request, 100)
    return E(response.error_code) or [each.transactional_id for each in response.transaction_states]


@pytest.mark.parametrize("pattern", ["(", "a" * 300, "(?=x)", r"(a)\1", "((a{30}){30}){30}"])
def test_wrong_patterns_are_refused(pattern: str) -> None:
    assert listed(["a"], pattern) == E.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)*b", ".*.*.*.*x", "(.*){9}b", "(a|a)" * 50 + "b", "(a|b|ab)*c", ".*a.{90}b.*"]
)
def test_no_pattern_keeps_anybody_waiting(pattern: str) -> None:
    """One that nobody had thought of took for ever: fifty times either of two that are the same."""
    ids = ["a" * length for length in range(200, 257)]

    def ask() -> None:
        assert listed(ids, pattern) in ([], E.INVALID_REGULAR_EXPRESSION)

    assert least_seconds(ask) < 0.5


def test_patterns_know_all_that_ids_are_made_of() -> None:
    ids = ["a:b/c d", "é", "A1", "x" * 257]
    assert listed(ids, ".*") == ["a:b/c d", "é", "A1"]
    assert listed(ids, r"a:b/c\sd") == ["a:b/c d"]
    assert listed(ids, "[[:alnum:]]+") == ["A1"]
    assert listed(ids, "[^a-z]") == ["é"]
    assert listed(ids, "(?i)a1") == ["A1"]
