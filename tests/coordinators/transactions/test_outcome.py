from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode as E
from millpond.coordinators.shard import Effects
from millpond.coordinators.transactions.records import record_of


def grow_old(coordinator: Any, epoch: int) -> None:
    coordinator.take(Effects(records=[record_of(replace(coordinator.shard.transactions["t"], producer_epoch=epoch))]))


# Transactions v1: the epoch stays


@pytest.mark.parametrize(("committed", "word"), [(True, "Commit"), (False, "Abort")])
def test_the_end_is_decided_then_carried_out(coordinator: Any, committed: bool, word: str) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 2, 1)
    assert coordinator.end(1000, 0, committed) == E.NONE
    assert coordinator.state() == f"Prepare{word}"
    (order,) = coordinator.orders
    assert (order.committed, order.producer_epoch, order.transaction_version) == (committed, 0, 0)
    assert [place.partition for place in order.partitions] == [1, 2]
    coordinator.markers()
    assert coordinator.state() == f"Complete{word}"
    assert coordinator.partitions() == []


def test_asking_again_v1(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    coordinator.end(1000, 0)
    assert coordinator.end(1000, 0) == E.CONCURRENT_TRANSACTIONS
    assert coordinator.end(1000, 0, committed=False) == E.INVALID_TXN_STATE
    coordinator.markers()
    assert coordinator.end(1000, 0) == E.NONE
    assert coordinator.end(1000, 0, committed=False) == E.INVALID_TXN_STATE


def test_nothing_to_end(coordinator: Any) -> None:
    assert coordinator.end(1000, 0) == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.end(1000, 0, name="") == E.INVALID_REQUEST
    coordinator.init()
    assert coordinator.end(1000, 0) == E.INVALID_TXN_STATE
    assert coordinator.end(1000, 0, committed=False) == E.INVALID_TXN_STATE
    assert coordinator.end(1001, 0) == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.end(1000, 1) == E.PRODUCER_FENCED


def test_the_next_transaction_waits_for_the_markers_of_the_last(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    coordinator.end(1000, 0)
    assert coordinator.add(1000, 0, 1) == E.CONCURRENT_TRANSACTIONS
    coordinator.markers()
    assert coordinator.add(1000, 0, 1) == E.NONE


def test_a_client_that_timed_out_is_fenced_v1(coordinator: Any) -> None:
    coordinator.init(timeout=100)
    coordinator.add(1000, 0, 1)
    coordinator.pass_time(101)
    assert coordinator.end(1000, 0) == E.PRODUCER_FENCED
    assert coordinator.end(1000, 0, committed=False) == E.PRODUCER_FENCED


# Transactions v2: the epoch rises with every end


def test_every_end_raises_the_epoch(coordinator: Any) -> None:
    coordinator.init()
    assert coordinator.add(1000, 0, 1, version=5) == E.NONE
    assert coordinator.end(1000, 0, version=5) == (E.NONE, 1000, 1)
    (order,) = coordinator.orders
    assert (order.producer_epoch, order.transaction_version) == (1, 2)
    coordinator.markers()
    assert coordinator.add(1000, 1, 1, version=5) == E.NONE
    assert coordinator.end(1000, 1, committed=False, version=5) == (E.NONE, 1000, 2)


def test_asking_again_v2(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1, version=5)
    coordinator.end(1000, 0, version=5)
    assert coordinator.end(1000, 0, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert coordinator.end(1000, 0, committed=False, version=5)[0] == E.INVALID_TXN_STATE
    coordinator.markers()
    assert coordinator.end(1000, 0, version=5) == (E.NONE, 1000, 1)
    assert coordinator.end(1000, 0, committed=False, version=5)[0] == E.INVALID_TXN_STATE
    coordinator.reload()
    assert coordinator.end(1000, 0, version=5) == (E.NONE, 1000, 1), "the log alone tells a retry"


def test_a_late_end_does_not_decide_the_next_transaction(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1, version=5)
    coordinator.end(1000, 0, version=5)
    coordinator.markers()
    coordinator.add(1000, 1, 2, version=5)
    assert coordinator.end(1000, 0, committed=False, version=5)[0] == E.PRODUCER_FENCED
    assert coordinator.end(1000, 0, version=5)[0] == E.PRODUCER_FENCED
    assert coordinator.state() == "Ongoing"


def test_nor_does_it_at_the_next_coordinator(coordinator: Any) -> None:
    """Jepsen on Bufstream: an EndTxn that was sent again ended the transaction that had begun meanwhile."""
    coordinator.init()
    coordinator.add(1000, 0, 1, version=5)
    coordinator.end(1000, 0, version=5)
    coordinator.reload()
    coordinator.markers()
    coordinator.add(1000, 1, 2, version=5)
    coordinator.reload()
    for committed in (True, False):
        assert coordinator.end(1000, 0, committed=committed, version=5)[0] == E.PRODUCER_FENCED
    assert coordinator.state() == "Ongoing"
    assert coordinator.end(1000, 1, committed=False, version=5)[0] == E.NONE, "its own end decides it"


def test_what_never_began_can_be_aborted_but_not_committed(coordinator: Any) -> None:
    coordinator.init()
    assert coordinator.end(1000, 0, version=5)[0] == E.INVALID_TXN_STATE
    assert coordinator.end(1000, 0, committed=False, version=5) == (E.NONE, 1000, 1)
    assert coordinator.orders == []
    assert coordinator.state() == "CompleteAbort"
    assert coordinator.end(1000, 0, committed=False, version=5) == (E.NONE, 1000, 1), "a retry"
    assert coordinator.end(1000, 1, committed=False, version=5) == (E.NONE, 1000, 2)
    assert coordinator.end(1000, 2, version=5)[0] == E.INVALID_TXN_STATE


def test_the_end_of_the_next_one_before_the_markers_of_this_one(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1, version=5)
    coordinator.end(1000, 0, version=5)
    assert coordinator.end(1000, 1, committed=False, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert coordinator.add(1000, 1, 1, version=5) == E.CONCURRENT_TRANSACTIONS


def test_the_last_epoch_hands_over_to_a_new_producer_id(coordinator: Any) -> None:
    coordinator.init()
    grow_old(coordinator, 32766)
    coordinator.add(1000, 32766, 1, version=5)
    assert coordinator.end(1000, 32766, version=5) == (E.NONE, 1001, 0)
    (order,) = coordinator.orders
    assert (order.producer_id, order.producer_epoch) == (1000, 32767)
    assert coordinator.end(1000, 32766, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert coordinator.add(1001, 0, 1, version=5) == E.CONCURRENT_TRANSACTIONS
    assert coordinator.end(1001, 0, committed=False, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert coordinator.init(pid=1001, epoch=0)[0] == E.CONCURRENT_TRANSACTIONS
    coordinator.reload()
    coordinator.markers()
    assert coordinator.end(1000, 32766, version=5) == (E.NONE, 1001, 0), "a retry"
    assert coordinator.end(1000, 32765, version=5)[0] == E.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.add(1001, 0, 1, version=5) == E.NONE


def test_without_a_producer_id_to_hand_over_to_nothing_is_decided(coordinator: Any) -> None:
    coordinator.init()
    grow_old(coordinator, 32766)
    coordinator.add(1000, 32766, 1, version=5)
    coordinator.has_ids = False
    assert coordinator.end(1000, 32766, version=5)[0] == E.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.state() == "Ongoing"


def test_a_client_that_timed_out_may_abort_and_go_on_v2(coordinator: Any) -> None:
    coordinator.init(timeout=100)
    coordinator.add(1000, 0, 1, version=5)
    coordinator.pass_time(101)
    coordinator.markers()
    assert coordinator.end(1000, 0, version=5)[0] == E.INVALID_TXN_STATE, "it was not committed"
    assert coordinator.end(1000, 0, committed=False, version=5) == (E.NONE, 1000, 1)
    assert coordinator.add(1000, 1, 1, version=5) == E.NONE


def test_a_client_may_learn_v2_between_two_transactions(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    coordinator.end(1000, 0)
    coordinator.markers()
    coordinator.add(1000, 0, 1, version=5)
    assert coordinator.end(1000, 0, version=5) == (E.NONE, 1000, 1)
