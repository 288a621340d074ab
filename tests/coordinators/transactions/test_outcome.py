from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode as E
from millpond.coordinators.shard import Effects
from millpond.coordinators.transactions.records import record_of


def grow_old(stage: Any, epoch: int) -> None:
    stage.take(Effects(records=[record_of(replace(stage.shard.transactions["t"], producer_epoch=epoch))]))


# Transactions v1: the epoch stays


@pytest.mark.parametrize(("committed", "word"), [(True, "Commit"), (False, "Abort")])
def test_the_end_is_decided_then_carried_out(stage: Any, committed: bool, word: str) -> None:
    stage.init()
    stage.add(1000, 0, 2, 1)
    assert stage.end(1000, 0, committed) == E.NONE
    assert stage.state() == f"Prepare{word}"
    (order,) = stage.orders
    assert (order.committed, order.producer_epoch, order.transaction_version) == (committed, 0, 0)
    assert [place.partition for place in order.partitions] == [1, 2]
    stage.markers()
    assert stage.state() == f"Complete{word}"
    assert stage.partitions() == []


def test_asking_again_v1(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1)
    stage.end(1000, 0)
    assert stage.end(1000, 0) == E.CONCURRENT_TRANSACTIONS
    assert stage.end(1000, 0, committed=False) == E.INVALID_TXN_STATE
    stage.markers()
    assert stage.end(1000, 0) == E.NONE
    assert stage.end(1000, 0, committed=False) == E.INVALID_TXN_STATE


def test_nothing_to_end(stage: Any) -> None:
    assert stage.end(1000, 0) == E.INVALID_PRODUCER_ID_MAPPING
    assert stage.end(1000, 0, name="") == E.INVALID_REQUEST
    stage.init()
    assert stage.end(1000, 0) == E.INVALID_TXN_STATE
    assert stage.end(1000, 0, committed=False) == E.INVALID_TXN_STATE
    assert stage.end(1001, 0) == E.INVALID_PRODUCER_ID_MAPPING
    assert stage.end(1000, 1) == E.PRODUCER_FENCED


def test_the_next_transaction_waits_for_the_markers_of_the_last(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1)
    stage.end(1000, 0)
    assert stage.add(1000, 0, 1) == E.CONCURRENT_TRANSACTIONS
    stage.markers()
    assert stage.add(1000, 0, 1) == E.NONE


def test_a_client_that_timed_out_is_fenced_v1(stage: Any) -> None:
    stage.init(timeout=100)
    stage.add(1000, 0, 1)
    stage.pass_time(101)
    assert stage.end(1000, 0) == E.PRODUCER_FENCED
    assert stage.end(1000, 0, committed=False) == E.PRODUCER_FENCED


# Transactions v2: the epoch rises with every end


def test_every_end_raises_the_epoch(stage: Any) -> None:
    stage.init()
    assert stage.add(1000, 0, 1, version=5) == E.NONE
    assert stage.end(1000, 0, version=5) == (E.NONE, 1000, 1)
    (order,) = stage.orders
    assert (order.producer_epoch, order.transaction_version) == (1, 2)
    stage.markers()
    assert stage.add(1000, 1, 1, version=5) == E.NONE
    assert stage.end(1000, 1, committed=False, version=5) == (E.NONE, 1000, 2)


def test_asking_again_v2(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1, version=5)
    stage.end(1000, 0, version=5)
    assert stage.end(1000, 0, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert stage.end(1000, 0, committed=False, version=5)[0] == E.INVALID_TXN_STATE
    stage.markers()
    assert stage.end(1000, 0, version=5) == (E.NONE, 1000, 1)
    assert stage.end(1000, 0, committed=False, version=5)[0] == E.INVALID_TXN_STATE
    stage.reload()
    assert stage.end(1000, 0, version=5) == (E.NONE, 1000, 1), "the log alone tells a retry"


def test_a_late_end_does_not_decide_the_next_transaction(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1, version=5)
    stage.end(1000, 0, version=5)
    stage.markers()
    stage.add(1000, 1, 2, version=5)
    assert stage.end(1000, 0, committed=False, version=5)[0] == E.PRODUCER_FENCED
    assert stage.end(1000, 0, version=5)[0] == E.PRODUCER_FENCED
    assert stage.state() == "Ongoing"


def test_nor_does_it_at_the_next_coordinator(stage: Any) -> None:
    """Jepsen on Bufstream: an EndTxn that was sent again ended the transaction that had begun meanwhile."""
    stage.init()
    stage.add(1000, 0, 1, version=5)
    stage.end(1000, 0, version=5)
    stage.reload()
    stage.markers()
    stage.add(1000, 1, 2, version=5)
    stage.reload()
    for committed in (True, False):
        assert stage.end(1000, 0, committed=committed, version=5)[0] == E.PRODUCER_FENCED
    assert stage.state() == "Ongoing"
    assert stage.end(1000, 1, committed=False, version=5)[0] == E.NONE, "its own end decides it"


def test_what_never_began_can_be_aborted_but_not_committed(stage: Any) -> None:
    stage.init()
    assert stage.end(1000, 0, version=5)[0] == E.INVALID_TXN_STATE
    assert stage.end(1000, 0, committed=False, version=5) == (E.NONE, 1000, 1)
    assert stage.orders == []
    assert stage.state() == "CompleteAbort"
    assert stage.end(1000, 0, committed=False, version=5) == (E.NONE, 1000, 1), "a retry"
    assert stage.end(1000, 1, committed=False, version=5) == (E.NONE, 1000, 2)
    assert stage.end(1000, 2, version=5)[0] == E.INVALID_TXN_STATE


def test_the_end_of_the_next_one_before_the_markers_of_this_one(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1, version=5)
    stage.end(1000, 0, version=5)
    assert stage.end(1000, 1, committed=False, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert stage.add(1000, 1, 1, version=5) == E.CONCURRENT_TRANSACTIONS


def test_the_last_epoch_hands_over_to_a_new_producer_id(stage: Any) -> None:
    stage.init()
    grow_old(stage, 32766)
    stage.add(1000, 32766, 1, version=5)
    assert stage.end(1000, 32766, version=5) == (E.NONE, 1001, 0)
    (order,) = stage.orders
    assert (order.producer_id, order.producer_epoch) == (1000, 32767)
    assert stage.end(1000, 32766, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert stage.add(1001, 0, 1, version=5) == E.CONCURRENT_TRANSACTIONS
    assert stage.end(1001, 0, committed=False, version=5)[0] == E.CONCURRENT_TRANSACTIONS
    assert stage.init(pid=1001, epoch=0)[0] == E.CONCURRENT_TRANSACTIONS
    stage.reload()
    stage.markers()
    assert stage.end(1000, 32766, version=5) == (E.NONE, 1001, 0), "a retry"
    assert stage.end(1000, 32765, version=5)[0] == E.INVALID_PRODUCER_ID_MAPPING
    assert stage.add(1001, 0, 1, version=5) == E.NONE


def test_without_a_producer_id_to_hand_over_to_nothing_is_decided(stage: Any) -> None:
    stage.init()
    grow_old(stage, 32766)
    stage.add(1000, 32766, 1, version=5)
    stage.has_ids = False
    assert stage.end(1000, 32766, version=5)[0] == E.COORDINATOR_LOAD_IN_PROGRESS
    assert stage.state() == "Ongoing"


def test_a_client_that_timed_out_may_abort_and_go_on_v2(stage: Any) -> None:
    stage.init(timeout=100)
    stage.add(1000, 0, 1, version=5)
    stage.pass_time(101)
    stage.markers()
    assert stage.end(1000, 0, version=5)[0] == E.INVALID_TXN_STATE, "it was not committed"
    assert stage.end(1000, 0, committed=False, version=5) == (E.NONE, 1000, 1)
    assert stage.add(1000, 1, 1, version=5) == E.NONE


def test_a_client_may_learn_v2_between_two_transactions(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1)
    stage.end(1000, 0)
    stage.markers()
    stage.add(1000, 0, 1, version=5)
    assert stage.end(1000, 0, version=5) == (E.NONE, 1000, 1)
