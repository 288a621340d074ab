"""The leader's half of replication: what it counts as committed, and whom it asks to keep in sync."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.base.errors import ErrorCode
from millpond.replication.leader import IsrRequest, PartitionLeader, PartitionView, Rules

VIEW = PartitionView(1, 5, 10, (1, 2, 3), (1, 2, 3))


def lead(view: PartitionView = VIEW, *, end: int = 10, min_isr: int = 2, can_join: bool = True) -> PartitionLeader:
    return PartitionLeader(
        1, view, end, 0, Rules(min_isr, 1000), lambda *_: can_join, elected_ms=0, log_end=end, epoch_start=end
    )


def test_committed_is_what_everybody_in_sync_has() -> None:
    leader = lead()
    assert not leader.on_fetch(2, 7, 10, 1)
    assert leader.on_fetch(3, 7, 6, 1)
    assert leader.high_watermark == 6
    assert leader.on_fetch(3, 7, 10, 2)
    assert leader.high_watermark == 10


def test_the_leader_counts_only_what_it_calls_its_own() -> None:
    leader = lead()
    leader.on_fetch(2, 7, 12, 1)
    leader.on_fetch(3, 7, 12, 1)
    leader.on_append(12, 11)
    assert leader.high_watermark == 11


def test_nothing_is_committed_with_too_few_in_sync() -> None:
    leader = lead(replace(VIEW, isr=(1,)))
    assert not leader.is_writable
    assert not leader.on_append(20, 20)
    assert leader.high_watermark == 0


def test_a_topic_with_fewer_replicas_than_asked_for_needs_all_of_them_and_not_more() -> None:
    leader = lead(PartitionView(1, 5, 10, (1,), (1,)), min_isr=3)
    assert leader.is_writable
    assert leader.high_watermark == 10


def test_who_lags_is_asked_to_leave_and_counts_until_the_controller_agrees() -> None:
    leader = lead()
    leader.on_fetch(2, 7, 10, 900)
    assert leader.isr_request(1000) is None
    request = leader.isr_request(1100)
    assert request is not None
    assert request.isr == ((1, -1), (2, 7))
    assert leader.isr_request(1200) is None, "one request at a time"
    assert leader.high_watermark == 0
    assert leader.on_view(replace(VIEW, partition_epoch=11, isr=(1, 2)))
    assert leader.high_watermark == 10


def test_who_keeps_up_one_step_behind_stays() -> None:
    leader = lead()
    for now_ms in range(100, 3000, 100):
        for broker in (2, 3):
            leader.on_fetch(broker, 7, leader.log_end, now_ms)
        leader.on_append(leader.log_end + 5, leader.log_end + 5)
        assert leader.isr_request(now_ms) is None


def test_who_has_caught_up_may_join_and_counts_at_once() -> None:
    leader = lead(replace(VIEW, isr=(1, 2)))
    leader.on_fetch(2, 7, 10, 1)
    assert leader.high_watermark == 10
    leader.on_fetch(3, 8, 9, 1)
    assert leader.isr_request(2) is None
    leader.on_fetch(3, 8, 10, 2)
    request = leader.isr_request(2)
    assert request is not None
    assert request.isr == ((1, -1), (2, 7), (3, 8))
    leader.on_append(11, 11)
    leader.on_fetch(2, 7, 11, 3)
    assert leader.high_watermark == 10, "nothing is committed without the one who joins"


def asked_to_join() -> tuple[PartitionLeader, IsrRequest]:
    """Broker 3 is asked to join, and lacks the last record."""
    leader = lead(replace(VIEW, isr=(1, 2)))
    leader.on_fetch(2, 7, 10, 1)
    leader.on_fetch(3, 8, 10, 1)
    request = leader.isr_request(2)
    assert request is not None
    leader.on_append(11, 11)
    leader.on_fetch(2, 7, 11, 3)
    return leader, request


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NOT_CONTROLLER])
def test_no_refusal_settles_a_request_of_which_a_copy_may_be_in_flight(error: ErrorCode) -> None:
    leader, request = asked_to_join()
    leader.on_isr_response(request, error)
    assert leader.high_watermark == 10
    # The copy is granted: the broker leads without a record that must not be committed yet.
    leader.on_view(replace(leader.view, partition_epoch=leader.view.partition_epoch + 1, isr=(1, 2, 3)))
    assert leader.high_watermark == 10


def test_a_request_for_a_replica_that_is_not_eligible_is_withdrawn() -> None:
    leader, request = asked_to_join()
    withdrawal = leader.on_isr_response(request, ErrorCode.INELIGIBLE_REPLICA)
    assert withdrawal is leader.pending is not None
    assert (withdrawal.members, withdrawal.withdrawn) == ((1, 2), (3,))
    assert withdrawal.partition_epoch == request.partition_epoch
    assert leader.on_isr_response(withdrawal, ErrorCode.INELIGIBLE_REPLICA) is None
    assert leader.pending is withdrawal
    assert leader.on_view(replace(leader.view, partition_epoch=leader.view.partition_epoch + 1))
    assert (leader.pending, leader.high_watermark) == (None, 11)


def test_a_controller_that_knows_no_withdrawals_is_believed() -> None:
    leader, request = asked_to_join()
    assert not leader.on_ignored(request)
    withdrawal = leader.on_isr_response(request, ErrorCode.INELIGIBLE_REPLICA)
    assert withdrawal is not None
    assert leader.on_ignored(withdrawal)
    assert (leader.pending, leader.high_watermark) == (None, 11)


def test_the_fenced_may_not_join() -> None:
    leader = lead(replace(VIEW, isr=(1, 2)), can_join=False)
    leader.on_fetch(2, 7, 10, 1)
    leader.on_fetch(3, 8, 10, 1)
    assert leader.isr_request(2) is None


def test_a_new_life_of_a_follower_has_to_show_how_far_it_is() -> None:
    leader = lead()
    leader.on_fetch(2, 7, 10, 1)
    leader.on_fetch(3, 7, 10, 1)
    leader.on_append(12, 12)
    leader.on_fetch(2, 9, 4, 2)
    assert leader.followers[2].end_offset == 4
    leader.on_fetch(2, 7, 12, 3)
    assert leader.followers[2].end_offset == 4, "a late fetch of the earlier life"


def test_old_metadata_is_no_news() -> None:
    leader = lead(replace(VIEW, isr=(1, 2)))
    assert not leader.on_view(replace(VIEW, partition_epoch=9))
    assert leader.view.isr == (1, 2)


def test_who_was_elected_without_being_sure_says_so_before_others_join() -> None:
    leader = lead(replace(VIEW, isr=(1,), is_recovering=True))
    leader.on_fetch(2, 7, 10, 1)
    request = leader.isr_request(2)
    assert request is not None
    assert request.members == (1,)
