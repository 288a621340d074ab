import pytest

from millpond.coordinators.transactions.states import State
from millpond.coordinators.transactions.transaction import Transaction, is_exhausted


def test_the_last_epoch_is_kept_for_fencing() -> None:
    assert [is_exhausted(epoch) for epoch in (32765, 32766, 32767)] == [False, True, True]


def test_a_transition_that_is_not_in_the_table_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="Empty to CompleteCommit"):
        Transaction("t", 1, 0, 1000, 5).moved(State.COMPLETE_COMMIT, 6)


def test_the_time_of_the_last_change_never_falls() -> None:
    assert Transaction("t", 1, 0, 1000, 50).moved(State.ONGOING, 6).updated_ms == 50


def test_a_move_remembers_the_producer_id_before_it() -> None:
    assert Transaction("t", 1, 0, 1000, 50).moved(State.ONGOING, 60).previous_producer_id == 1


def test_an_heir_is_only_the_announced_one() -> None:
    plain = Transaction("t", 1, 0, 1000, 50)
    assert not plain.is_heir(-1)
    assert Transaction("t", 1, 0, 1000, 50, next_producer_id=9).is_heir(9)
