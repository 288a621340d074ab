from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode as E


def bring_to_epoch(stage: Any, epoch: int) -> None:
    """Let an id grow old without a thousand requests."""
    from dataclasses import replace

    from millpond.coordinators.shard import Effects
    from millpond.coordinators.transactions.records import record_of

    stage.take(Effects(records=[record_of(replace(stage.shard.transactions["t"], producer_epoch=epoch))]))


def test_a_new_id_begins_at_epoch_0_and_each_producer_after_it_one_higher(stage: Any) -> None:
    assert stage.init() == (E.NONE, 1000, 0)
    assert stage.init() == (E.NONE, 1000, 1)
    assert stage.init(name="other") == (E.NONE, 1001, 0)


def test_what_cannot_be_asked_for(stage: Any) -> None:
    assert stage.init(name="")[0] == E.INVALID_REQUEST
    assert stage.init(timeout=0)[0] == E.INVALID_TRANSACTION_TIMEOUT
    assert stage.init(timeout=60_001)[0] == E.INVALID_TRANSACTION_TIMEOUT
    assert stage.init(timeout=60_000)[0] == E.NONE
    assert stage.init(pid=1000, epoch=-1)[0] == E.INVALID_REQUEST


def test_without_a_producer_id_at_hand_the_client_asks_again(stage: Any) -> None:
    stage.has_ids = False
    assert stage.init() == (E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    assert stage.log == []
    stage.has_ids = True
    assert stage.init() == (E.NONE, 1000, 0)


def test_a_successor_aborts_the_open_transaction_and_asks_until_that_is_done(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1, 2)
    assert stage.init() == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    assert stage.state() == "PrepareAbort"
    (order,) = stage.orders
    assert (order.producer_epoch, order.committed, len(order.partitions)) == (1, False, 2)
    assert stage.init() == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    stage.markers()
    assert stage.init() == (E.NONE, 1000, 2)


def test_the_zombie_of_before_can_do_nothing(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1)
    stage.init()
    stage.markers()
    stage.init()
    assert stage.add(1000, 0, 1) == E.PRODUCER_FENCED
    assert stage.add(1000, 0, 1, version=1) == E.INVALID_PRODUCER_EPOCH
    assert stage.end(1000, 0) == E.PRODUCER_FENCED
    assert stage.end(1000, 0, version=1) == E.INVALID_PRODUCER_EPOCH
    assert stage.init(pid=1000, epoch=0) == (E.PRODUCER_FENCED, -1, -1)
    assert stage.init(pid=1000, epoch=0, version=3) == (E.INVALID_PRODUCER_EPOCH, -1, -1)
    assert stage.init(pid=77, epoch=0) == (E.PRODUCER_FENCED, -1, -1)


def test_a_zombie_that_shows_its_epoch_does_not_abort_its_successor(stage: Any) -> None:
    stage.init()
    stage.init()
    stage.add(1000, 1, 1)
    assert stage.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED
    assert stage.state() == "Ongoing"


def test_a_producer_that_goes_on_may_ask_twice(stage: Any) -> None:
    stage.init()
    assert stage.init(pid=1000, epoch=0) == (E.NONE, 1000, 1)
    assert stage.init(pid=1000, epoch=0) == (E.NONE, 1000, 1)
    assert stage.init(pid=1000, epoch=1) == (E.NONE, 1000, 2)


def test_after_a_successor_the_retry_is_a_zombie(stage: Any) -> None:
    stage.init()
    stage.init(pid=1000, epoch=0)
    assert stage.init() == (E.NONE, 1000, 2)
    assert stage.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED


def test_a_retry_at_another_coordinator_is_fenced(stage: Any) -> None:
    stage.init()
    stage.init(pid=1000, epoch=0)
    stage.reload()
    assert stage.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED


def test_a_late_retry_does_not_disturb_the_transaction_that_follows(stage: Any) -> None:
    stage.init()
    stage.init(pid=1000, epoch=0)
    stage.add(1000, 1, 4)
    assert stage.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED
    assert stage.end(1000, 1) == E.NONE


def test_a_producer_may_go_on_out_of_an_open_transaction(stage: Any) -> None:
    stage.init()
    stage.add(1000, 0, 1)
    assert stage.init(pid=1000, epoch=0)[0] == E.CONCURRENT_TRANSACTIONS
    stage.markers()
    assert stage.init(pid=1000, epoch=0) == (E.NONE, 1000, 2)
    assert stage.init(pid=1000, epoch=0) == (E.NONE, 1000, 2)


def test_a_recovered_producer_with_an_id_nobody_knows_gets_a_new_one(stage: Any) -> None:
    assert stage.init(pid=55, epoch=9) == (E.NONE, 1000, 0)


def test_used_up_epochs_rotate_the_producer_id(stage: Any) -> None:
    stage.init()
    bring_to_epoch(stage, 32765)
    assert stage.init() == (E.NONE, 1000, 32766)
    assert stage.init(pid=1000, epoch=32766) == (E.NONE, 1001, 0)
    assert stage.init(pid=1000, epoch=32766) == (E.NONE, 1001, 0), "a retry"
    assert stage.init(pid=1000, epoch=32765)[0] == E.PRODUCER_FENCED
    assert stage.init(pid=1001, epoch=0) == (E.NONE, 1001, 1)


def test_fencing_with_the_last_epoch_rotates_too(stage: Any) -> None:
    stage.init()
    bring_to_epoch(stage, 32766)
    stage.add(1000, 32766, 1)
    assert stage.init()[0] == E.CONCURRENT_TRANSACTIONS
    (order,) = stage.orders
    assert (order.producer_id, order.producer_epoch) == (1000, 32767)
    stage.markers()
    assert stage.init() == (E.NONE, 1001, 1)


def test_the_timeout_is_that_of_the_latest_producer(stage: Any) -> None:
    stage.init(timeout=5_000)
    stage.init(timeout=300)
    assert stage.shard.transactions["t"].timeout_ms == 300


@pytest.mark.parametrize("version", range(6))
def test_every_version_is_served(stage: Any, version: int) -> None:
    assert stage.init(version=version) == (E.NONE, 1000, 0)
