"""Who leads and who is in sync: each change of a partition's leadership, as a table of before and after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode
from millpond.metadata.leadership import (
    NO_LEADER,
    CanLead,
    IsrChange,
    Leadership,
    Loss,
    Rules,
    back,
    change,
    decide_isr_change,
    without,
)

WHOLE = Leadership((1, 2, 3), (1, 2, 3), 1, 5, 10)
TWO = Rules(min_isr=2)


def only(*alive: int) -> CanLead:
    return lambda broker: broker in alive


def test_another_in_sync_leads_when_the_leader_is_gone() -> None:
    after = without(WHOLE, 1, TWO, only(2, 3))
    assert after == Leadership((1, 2, 3), (2, 3), 2, 6, 11)


def test_a_follower_that_leaves_begins_no_new_leader_epoch() -> None:
    assert without(WHOLE, 3, TWO, only(1, 2)) == Leadership((1, 2, 3), (1, 2), 1, 5, 11)


def test_who_leaves_below_the_least_number_stays_eligible_and_may_lead_again() -> None:
    state = without(without(WHOLE, 1, TWO, only(2, 3)), 2, TWO, only(3))
    assert (state.isr, state.elr, state.leader) == ((3,), (2,), 3)
    state = without(state, 3, TWO, only())
    assert (state.isr, state.elr, state.leader) == ((), (2, 3), NO_LEADER)
    assert back(state, 1, TWO, only(1)).leader == NO_LEADER, "it left while two others went on"
    state = back(state, 2, TWO, only(2))
    assert (state.isr, state.elr, state.leader) == ((2,), (3,), 2)


def test_who_may_have_lost_records_is_neither_in_sync_nor_eligible() -> None:
    state = without(WHOLE, 1, Rules(min_isr=3), only(1, 2, 3), loss=Loss.UNSYNCED)
    assert (state.isr, state.elr, state.leader) == ((2, 3), (), 2)


def test_the_only_replica_leads_on_in_a_new_epoch_after_it_lost_records() -> None:
    alone = Leadership((1,), (1,), 1, 5, 10)
    after = without(alone, 1, Rules(), only(1), loss=Loss.UNSYNCED)
    assert (after.leader, after.leader_epoch, after.is_recovering) == (1, 6, True)


def test_the_last_one_known_leads_only_when_it_is_sure_who_that_was() -> None:
    one = Leadership((1, 2, 3), (3,), 3, 5, 10)
    gone = without(one, 3, Rules(), only(), loss=Loss.UNSYNCED)
    assert (gone.leader, gone.last_known) == (NO_LEADER, (3,))
    assert back(gone, 3, Rules(), only(3)).is_recovering
    assert back(gone, 1, Rules(), only(1)).leader == NO_LEADER


def test_a_disk_that_is_empty_is_not_the_last_one_known() -> None:
    """Seed 1000066 of the clusters: with it, everything acknowledged was gone, while others still had it."""
    one = Leadership((1, 2, 3), (), NO_LEADER, 5, 10, elr=(3,))
    gone = without(one, 3, Rules(), only(), loss=Loss.ALL)
    assert (gone.leader, gone.elr, gone.last_known) == (NO_LEADER, (), ())
    assert back(gone, 3, Rules(), only(3)).leader == NO_LEADER
    after_a_power_cut = without(one, 3, Rules(), only(), loss=Loss.UNSYNCED)
    assert after_a_power_cut.last_known == (3,)
    assert without(after_a_power_cut, 3, Rules(), only(), loss=Loss.ALL).last_known == ()


def test_who_syncs_first_is_still_eligible_after_a_power_cut() -> None:
    """And begins another epoch: what it had and nobody acknowledged may be gone."""
    synced = Rules(min_isr=2, syncs_first=True)
    one = Leadership((1, 2, 3), (3,), 3, 5, 10, elr=(2,))
    gone = without(one, 3, synced, only(), loss=Loss.UNSYNCED)
    assert (gone.isr, gone.elr, gone.leader, gone.leader_epoch) == ((), (2, 3), NO_LEADER, 6)
    assert without(gone, 3, synced, only(), loss=Loss.UNSYNCED) == gone
    led = back(gone, 3, synced, only(3))
    assert (led.isr, led.elr, led.leader, led.is_recovering) == ((3,), (2,), 3, False)
    for loss in (Loss.SOME, Loss.ALL):
        assert without(one, 3, synced, only(), loss=loss).elr == (2,)


def test_unclean_elections_are_off_unless_asked_for() -> None:
    gone = Leadership((1, 2, 3), (3,), NO_LEADER, 5, 10)
    assert change(gone, (3,), Rules(), only(1)).leader == NO_LEADER
    unclean = change(gone, (3,), Rules(may_elect_unclean=True), only(1))
    assert (unclean.leader, unclean.isr, unclean.elr, unclean.is_recovering) == (1, (1,), (), True)


def test_the_preferred_leader_must_be_in_sync() -> None:
    state = Leadership((1, 2, 3), (2, 3), 2, 5, 10)
    assert change(state, state.isr, TWO, only(1, 2, 3), prefer_first=True) == state
    whole = Leadership((1, 2, 3), (1, 2, 3), 2, 5, 10)
    assert change(whole, whole.isr, TWO, only(1, 2, 3), prefer_first=True).leader == 1


ASKED = IsrChange(1, 100, 5, 10, ((1, 100), (2, 200)))


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        (IsrChange(1, 99, 5, 10, ASKED.isr), ErrorCode.STALE_BROKER_EPOCH),
        (IsrChange(1, 100, 6, 10, ASKED.isr), ErrorCode.NOT_CONTROLLER),
        (IsrChange(1, 100, 5, 11, ASKED.isr), ErrorCode.NOT_CONTROLLER),
        (IsrChange(1, 100, 4, 10, ASKED.isr), ErrorCode.FENCED_LEADER_EPOCH),
        (IsrChange(2, 200, 5, 10, ASKED.isr), ErrorCode.INVALID_REQUEST),
        (IsrChange(1, 100, 5, 9, ASKED.isr), ErrorCode.INVALID_UPDATE_VERSION),
        (IsrChange(1, 100, 5, 10, ()), ErrorCode.INVALID_REQUEST),
        (IsrChange(1, 100, 5, 10, ((3, 300),)), ErrorCode.INELIGIBLE_REPLICA),
        (IsrChange(1, 100, 5, 10, ((1, 100), (7, 700))), ErrorCode.INVALID_REQUEST),
        (IsrChange(1, 100, 5, 10, ((1, 100), (1, 100))), ErrorCode.INVALID_REQUEST),
        (IsrChange(1, 100, 5, 10, ((1, 100), (2, 199))), ErrorCode.INELIGIBLE_REPLICA),
        (IsrChange(1, 100, 5, 10, ((1, 100), (3, 300))), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_change_that_cannot_be_says_whose_fault_it_is(asked: IsrChange, result: ErrorCode) -> None:
    assert decide_isr_change(WHOLE, asked, TWO, only(1, 2), lambda broker: broker * 100) is result


def test_every_isr_change_raises_the_partition_epoch() -> None:
    after = decide_isr_change(WHOLE, ASKED, TWO, only(1, 2), lambda broker: broker * 100)
    assert after == Leadership((1, 2, 3), (1, 2), 1, 5, 11)


def test_a_leader_that_asks_for_no_change_gets_a_new_partition_epoch() -> None:
    """By which it takes an earlier request back, of which a copy may be in flight."""
    asked = IsrChange(1, 100, 5, 10, ((1, -1), (2, -1)))
    before = Leadership((1, 2, 3), (1, 2), 1, 5, 10)
    # Nobody joins, so nobody has to be eligible.
    after = decide_isr_change(before, asked, TWO, only(1), lambda broker: broker * 100)
    assert after == Leadership((1, 2, 3), (1, 2), 1, 5, 11)
    late = IsrChange(1, 100, 5, 10, ((1, 100), (2, 200), (3, 300)))
    answer = decide_isr_change(after, late, TWO, only(1, 2, 3), lambda broker: broker * 100)
    assert answer is ErrorCode.INVALID_UPDATE_VERSION


def test_a_leader_that_names_only_others_gives_the_leadership_away() -> None:
    asked = IsrChange(1, 100, 5, 10, ((2, 200),))
    after = decide_isr_change(WHOLE, asked, TWO, only(1, 2), lambda broker: broker * 100)
    # Its disk fails: it is not eligible either, though too few are in sync now.
    assert after == Leadership((1, 2, 3), (2,), 2, 6, 11, elr=(3,))
    # Nor can the next one write. Nothing was committed since the third left the ISR.
    asked = IsrChange(2, 200, 6, 11, ((3, 300),))
    after = decide_isr_change(after, asked, TWO, only(1, 2, 3), lambda broker: broker * 100)
    assert after == Leadership((1, 2, 3), (3,), 3, 7, 12)
    stranger = IsrChange(3, 300, 7, 12, ((1, 100),))
    assert decide_isr_change(after, stranger, TWO, only(1, 2, 3), lambda broker: broker * 100) is (
        ErrorCode.INVALID_REQUEST
    ), "only to somebody who has everything"


brokers = st.sets(st.integers(1, 4))


@given(
    isr=brokers,
    elr=brokers,
    gone=st.integers(1, 4),
    alive=brokers,
    loss=st.sampled_from(Loss),
    least=st.integers(1, 3),
)
def test_whatever_happens_only_the_trusted_lead(
    isr: set[int], elr: set[int], gone: int, alive: set[int], loss: Loss, least: int
) -> None:
    replicas = (1, 2, 3, 4)
    leader = min(isr, default=NO_LEADER)
    before = Leadership(replicas, tuple(sorted(isr)), leader, 5, 10, tuple(sorted(elr - isr)))
    after = without(before, gone, Rules(least), only(*(alive - {gone})), loss=loss)
    if after.leader != NO_LEADER:
        assert after.leader in after.isr
    if not after.is_recovering:
        assert set(after.isr) <= {*before.isr, *before.elr}
    assert not set(after.elr) & set(after.isr)
    assert not (loss and gone in {*after.isr, *after.elr} and not after.is_recovering)
    assert after.leader_epoch >= before.leader_epoch
    assert (after == before) == (after.partition_epoch == before.partition_epoch)
