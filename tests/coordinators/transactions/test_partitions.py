import pytest

from millpond.base.errors import ErrorCode as E
from millpond.base.ids import TopicPartition
from millpond.coordinators.transactions import partitions
from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import EPOCH_MAX, Transaction

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def at(state: State, *places: TopicPartition, epoch: int = 3, heir: int = -1) -> Transaction:
    return Transaction("t", 9, epoch, 1000, 50, state, frozenset(places), 40, next_producer_id=heir)


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: State) -> None:
    error, (begun,) = partitions.add(at(state), 9, 3, [A0], 2, 100)
    assert (error, begun.state, begun.partitions, begun.start_ms) == (E.NONE, State.ONGOING, {A0}, 100)
    assert begun.client_version == 2


def test_more_partitions_join_and_the_clock_of_the_transaction_runs_on() -> None:
    error, (grown,) = partitions.add(at(State.ONGOING, A0), 9, 3, [A1], 0, 100)
    assert (error, grown.partitions, grown.start_ms, grown.updated_ms) == (E.NONE, {A0, A1}, 40, 100)


def test_a_partition_that_is_there_costs_no_record() -> None:
    assert partitions.add(at(State.ONGOING, A0, A1), 9, 3, [A1], 0, 100) == (E.NONE, ())


@pytest.mark.parametrize(
    ("current", "producer_id", "epoch", "error"),
    [
        (None, 9, 3, E.INVALID_PRODUCER_ID_MAPPING),
        (at(State.ONGOING), 8, 3, E.INVALID_PRODUCER_ID_MAPPING),
        (at(State.ONGOING), 9, 2, E.PRODUCER_FENCED),
        (at(State.ONGOING), 9, 4, E.PRODUCER_FENCED),
        (at(State.COMPLETE_ABORT, epoch=EPOCH_MAX), 9, EPOCH_MAX, E.PRODUCER_FENCED),
        (at(State.PREPARE_COMMIT, A0), 9, 3, E.CONCURRENT_TRANSACTIONS),
        (at(State.PREPARE_ABORT, A0), 9, 3, E.CONCURRENT_TRANSACTIONS),
        (at(State.PREPARE_ABORT, A0, heir=10), 10, 0, E.CONCURRENT_TRANSACTIONS),
    ],
)
def test_who_may_not_write(current: Transaction | None, producer_id: int, epoch: int, error: E) -> None:
    assert partitions.add(current, producer_id, epoch, [A0], 0, 100) == (error, ())
    assert partitions.membership(current, producer_id, epoch, [A0]) == {A0: error}


def test_each_partition_is_verified_separately() -> None:
    got = partitions.membership(at(State.ONGOING, A0), 9, 3, [A0, A1])
    assert got == {A0: E.NONE, A1: E.TRANSACTION_ABORTABLE}


def test_a_resting_producer_has_no_partition() -> None:
    assert partitions.membership(at(State.COMPLETE_COMMIT), 9, 3, [A0]) == {A0: E.TRANSACTION_ABORTABLE}
