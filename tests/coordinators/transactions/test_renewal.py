from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode as E


def bring_to_epoch(coordinator: Any, epoch: int) -> None:
    """Let an id grow old without a thousand requests."""
    from dataclasses import replace

    from millpond.coordinators.shard import Effects
    from millpond.coordinators.transactions.records import record_of

    coordinator.take(Effects(records=[record_of(replace(coordinator.shard.transactions["t"], producer_epoch=epoch))]))


def test_a_new_id_begins_at_epoch_0_and_each_producer_after_it_one_higher(coordinator: Any) -> None:
    assert coordinator.init() == (E.NONE, 1000, 0)
    assert coordinator.init() == (E.NONE, 1000, 1)
    assert coordinator.init(name="other") == (E.NONE, 1001, 0)


def test_what_cannot_be_asked_for(coordinator: Any) -> None:
    assert coordinator.init(name="")[0] == E.INVALID_REQUEST
    assert coordinator.init(timeout=0)[0] == E.INVALID_TRANSACTION_TIMEOUT
    assert coordinator.init(timeout=60_001)[0] == E.INVALID_TRANSACTION_TIMEOUT
    assert coordinator.init(timeout=60_000)[0] == E.NONE
    assert coordinator.init(pid=1000, epoch=-1)[0] == E.INVALID_REQUEST


def test_without_a_producer_id_at_hand_the_client_asks_again(coordinator: Any) -> None:
    coordinator.has_ids = False
    assert coordinator.init() == (E.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    assert coordinator.log == []
    coordinator.has_ids = True
    assert coordinator.init() == (E.NONE, 1000, 0)


def test_a_successor_aborts_the_open_transaction_and_asks_until_that_is_done(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1, 2)
    assert coordinator.init() == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    assert coordinator.state() == "PrepareAbort"
    (order,) = coordinator.orders
    assert (order.producer_epoch, order.committed, len(order.partitions)) == (1, False, 2)
    assert coordinator.init() == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    coordinator.markers()
    assert coordinator.init() == (E.NONE, 1000, 2)


def test_the_zombie_of_before_can_do_nothing(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    coordinator.init()
    coordinator.markers()
    coordinator.init()
    assert coordinator.add(1000, 0, 1) == E.PRODUCER_FENCED
    assert coordinator.add(1000, 0, 1, version=1) == E.INVALID_PRODUCER_EPOCH
    assert coordinator.end(1000, 0) == E.PRODUCER_FENCED
    assert coordinator.end(1000, 0, version=1) == E.INVALID_PRODUCER_EPOCH
    assert coordinator.init(pid=1000, epoch=0) == (E.PRODUCER_FENCED, -1, -1)
    assert coordinator.init(pid=1000, epoch=0, version=3) == (E.INVALID_PRODUCER_EPOCH, -1, -1)
    assert coordinator.init(pid=77, epoch=0) == (E.PRODUCER_FENCED, -1, -1)


def test_a_zombie_that_shows_its_epoch_does_not_abort_its_successor(coordinator: Any) -> None:
    coordinator.init()
    coordinator.init()
    coordinator.add(1000, 1, 1)
    assert coordinator.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED
    assert coordinator.state() == "Ongoing"


def test_a_producer_that_goes_on_may_ask_twice(coordinator: Any) -> None:
    coordinator.init()
    assert coordinator.init(pid=1000, epoch=0) == (E.NONE, 1000, 1)
    assert coordinator.init(pid=1000, epoch=0) == (E.NONE, 1000, 1)
    assert coordinator.init(pid=1000, epoch=1) == (E.NONE, 1000, 2)


def test_after_a_successor_the_retry_is_a_zombie(coordinator: Any) -> None:
    coordinator.init()
    coordinator.init(pid=1000, epoch=0)
    assert coordinator.init() == (E.NONE, 1000, 2)
    assert coordinator.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED


def test_a_retry_at_another_coordinator_is_fenced(coordinator: Any) -> None:
    coordinator.init()
    coordinator.init(pid=1000, epoch=0)
    coordinator.reload()
    assert coordinator.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED


def test_a_late_retry_does_not_disturb_the_transaction_that_follows(coordinator: Any) -> None:
    coordinator.init()
    coordinator.init(pid=1000, epoch=0)
    coordinator.add(1000, 1, 4)
    assert coordinator.init(pid=1000, epoch=0)[0] == E.PRODUCER_FENCED
    assert coordinator.end(1000, 1) == E.NONE


def test_a_producer_may_go_on_out_of_an_open_transaction(coordinator: Any) -> None:
    coordinator.init()
    coordinator.add(1000, 0, 1)
    assert coordinator.init(pid=1000, epoch=0)[0] == E.CONCURRENT_TRANSACTIONS
    coordinator.markers()
    assert coordinator.init(pid=1000, epoch=0) == (E.NONE, 1000, 2)
    assert coordinator.init(pid=1000, epoch=0) == (E.NONE, 1000, 2)


def test_a_recovered_producer_with_an_unknown_id_gets_a_new_one(coordinator: Any) -> None:
    assert coordinator.init(pid=55, epoch=9) == (E.NONE, 1000, 0)


def test_used_up_epochs_rotate_the_producer_id(coordinator: Any) -> None:
    coordinator.init()
    bring_to_epoch(coordinator, 32765)
    assert coordinator.init() == (E.NONE, 1000, 32766)
    assert coordinator.init(pid=1000, epoch=32766) == (E.NONE, 1001, 0)
    assert coordinator.init(pid=1000, epoch=32766) == (E.NONE, 1001, 0), "a retry"
    assert coordinator.init(pid=1000, epoch=32765)[0] == E.PRODUCER_FENCED
    assert coordinator.init(pid=1001, epoch=0) == (E.NONE, 1001, 1)


def test_fencing_with_the_last_epoch_rotates_too(coordinator: Any) -> None:
    coordinator.init()
    bring_to_epoch(coordinator, 32766)
    coordinator.add(1000, 32766, 1)
    assert coordinator.init()[0] == E.CONCURRENT_TRANSACTIONS
    (order,) = coordinator.orders
    assert (order.producer_id, order.producer_epoch) == (1000, 32767)
    coordinator.markers()
    assert coordinator.init() == (E.NONE, 1001, 1)


def test_the_timeout_is_that_of_the_latest_producer(coordinator: Any) -> None:
    coordinator.init(timeout=5_000)
    coordinator.init(timeout=300)
    assert coordinator.shard.transactions["t"].timeout_ms == 300


@pytest.mark.parametrize("version", range(6))
def test_every_version_is_served(coordinator: Any, version: int) -> None:
    assert coordinator.init(version=version) == (E.NONE, 1000, 0)
