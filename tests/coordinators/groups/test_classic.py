"""The group itself: states, what it supports, what its records say."""

import pytest

from millpond.coordinators.groups.classic import ALLOWED, CAN_REBALANCE, ClassicGroup, State


def test_every_state_says_where_it_leads() -> None:
    assert ALLOWED.keys() == set(State)
    assert {State.EMPTY, State.STABLE, State.COMPLETING} == CAN_REBALANCE
    assert all(State.DEAD in then for state, then in ALLOWED.items() if state is not State.DEAD)


@pytest.mark.parametrize("state", State)
def test_no_other_way_leads_there(state: State) -> None:
    for then in State:
        group = ClassicGroup("g")
        group.state = state
        if then in ALLOWED[state]:
            group.move_to(then, 5)
            assert (group.state, group.state_since_ms) == (then, 5)
        else:
            with pytest.raises(AssertionError):
                group.move_to(then, 5)


def test_members_keep_what_the_log_does_not_know(stage) -> None:
    stage.stable(protocols=("x", "y"))
    (live,) = stage.group().members.values()
    assert [name for name, _ in live.protocols] == ["x", "y"]
    (loaded,) = stage.loaded_again().groups["g"].members.values()
    assert [name for name, _ in loaded.protocols] == ["x"]


def test_subscription_of_the_group_is_that_of_its_members(stage) -> None:
    one, first = stage.join_new(topics=("t",))
    stage.join_new(topics=("u",))
    stage.pass_time(6000)
    assert stage.group().subscribed == {"t", "u"}
    assert stage.answer(first).leader == one
    assert stage.group().subscribed_among(["t", "v"]) == {"t"}


def test_of_equal_votes_the_first_to_be_named_wins(stage) -> None:
    _, token = stage.join_new(protocols=("x", "y"))
    stage.join_new(protocols=("y", "x"))
    stage.pass_time(6000)
    assert stage.answer(token).protocol_name == "x"
