"""The group itself: states, what it supports, what its records say."""

from typing import Any

import pytest

from millpond.coordinators.groups.classic import (
    ALLOWED,
    CAN_REBALANCE,
    SUBSCRIBED_NAMES_MAX,
    ClassicGroup,
    State,
)
from millpond.coordinators.groups.records import versioned
from millpond.wire import messages as m
from millpond.wire.messages import ConsumerProtocolSubscription


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


def test_members_keep_what_the_log_does_not_know(coordinator) -> None:
    coordinator.stable(protocols=("x", "y"))
    (live,) = coordinator.group().members.values()
    assert [name for name, _ in live.protocols] == ["x", "y"]
    (loaded,) = coordinator.loaded_again().groups["g"].members.values()
    assert [name for name, _ in loaded.protocols] == ["x"]


def test_subscription_of_the_group_is_that_of_its_members(coordinator) -> None:
    one, first = coordinator.join_new(topics=("t",))
    coordinator.join_new(topics=("u",))
    coordinator.pass_time(6000)
    assert coordinator.group().subscribed == {"t", "u"}
    assert coordinator.answer(first).leader == one
    assert coordinator.group().subscribed_among(["t", "v"]) == {"t"}


@pytest.fixture
def names_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names were found in each subscription that was read."""
    counts: list[int] = []
    decode = ConsumerProtocolSubscription.decode

    def counted(*asked: Any) -> Any:
        message, end = decode(*asked)
        counts.append(len(message.topics))
        return message, end

    monkeypatch.setattr(ConsumerProtocolSubscription, "decode", counted)
    return counts


def test_only_so_many_names_are_read_and_where_there_are_more_nothing_is_thought_unread(
    coordinator, names_read: list[int]
) -> None:
    """Hundreds of members with tens of thousands of names each: they were read for seconds while everybody waited."""
    for number in range(6):
        coordinator.join_new(topics=[f"{number}.{each}" for each in range(SUBSCRIBED_NAMES_MAX // 5)])
    coordinator.pass_time(6000)
    assert len(coordinator.group().members) == 6
    assert sum(names_read) == SUBSCRIBED_NAMES_MAX
    assert coordinator.group().subscribed is None
    assert coordinator.group().subscribed_among(["0.0", "5.0", "other"]) == {"0.0", "5.0", "other"}


def test_as_many_names_as_are_read_are_known(coordinator) -> None:
    for number in range(5):
        coordinator.join_new(topics=[f"{number}.{each}" for each in range(SUBSCRIBED_NAMES_MAX // 5)])
    coordinator.pass_time(6000)
    assert len(coordinator.group().subscribed) == SUBSCRIBED_NAMES_MAX
    assert coordinator.group().subscribed_among(["0.0", "4.0", "other"]) == {"0.0", "4.0"}


def test_equal_lists_are_read_once_whatever_else_members_say(coordinator, names_read: list[int]) -> None:
    kind = ConsumerProtocolSubscription
    for number in range(20):
        owned = [kind.TopicPartition(topic="t", partitions=[number])]
        names = ["t", "u"] if number % 2 else ["u", "t", "v"]
        said = kind(topics=names, user_data=b"x" * number or None, owned_partitions=owned, generation_id=number)
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="sticky", metadata=versioned(said, 2))
        body = m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[protocol],
            group_instance_id=f"i{number}",
        )
        coordinator.send(body, 5)
    coordinator.pass_time(6000)
    assert len(coordinator.group().members) == 20
    assert coordinator.group().subscribed == {"t", "u", "v"}
    assert sorted(names_read) == [2, 3]


def test_of_equal_votes_the_first_to_be_named_wins(coordinator) -> None:
    _, request_id = coordinator.join_new(protocols=("x", "y"))
    coordinator.join_new(protocols=("y", "x"))
    coordinator.pass_time(6000)
    assert coordinator.answer(request_id).protocol_name == "x"
