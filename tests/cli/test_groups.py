"""What the library says about groups, in our words."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException

from millpond.cli.errors import Failed
from millpond.cli.groups import (
    Group,
    Member,
    commit_offsets,
    describe_groups,
    find_groups,
    list_groups,
    refuse_if_active,
)


def done(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def refused(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def listing(name: str, state: ConsumerGroupState, kind: ConsumerGroupType) -> SimpleNamespace:
    return SimpleNamespace(group_id=name, state=state, type=kind)


class Admin:
    """Answers as a cluster would that no test can bring about at will."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __getattr__(self, call: str) -> Any:
        return lambda *_, **__: self._answers[call]


def group(*members: Member) -> Group:
    return Group("g", "stable", "classic", "range", "localhost:9092", list(members))


def test_members_are_named_up_to_a_point() -> None:
    refuse_if_active(group(), "to reset it")
    members = [Member(f"id-{at}", None, f"app-{at}", "10.0.0.1") for at in range(5)]
    with pytest.raises(Failed) as told:
        refuse_if_active(group(*members), "to reset it")
    assert told.value.message.startswith(
        "Group g has 5 active members (app-0 on 10.0.0.1, app-1 on 10.0.0.1, app-2 on 10.0.0.1 and 2 more): "
        "stop them first to reset it; "
    )


def test_states_without_a_word_in_the_library_are_rebalances() -> None:
    moving = listing("b", ConsumerGroupState.UNKNOWN, ConsumerGroupType.CONSUMER)
    joining = listing("a", ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupType.CLASSIC)
    found = list_groups(Admin(list_consumer_groups=done(SimpleNamespace(valid=[moving, joining], errors=[]))))  # type: ignore[arg-type]
    assert [(each.group, each.state) for each in found] == [("a", "rebalancing"), ("b", "rebalancing")]


def test_half_a_list_is_a_failure() -> None:
    half = SimpleNamespace(valid=[], errors=[KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE))])
    with pytest.raises(Failed, match="A broker does not say what groups it has"):
        list_groups(Admin(list_consumer_groups=done(half)))  # type: ignore[arg-type]


def test_a_newer_cluster_says_by_an_error_that_there_is_no_group() -> None:
    admin: Any = Admin(
        describe_consumer_groups={"g": refused(KafkaError.GROUP_ID_NOT_FOUND)},
        list_consumer_groups=done(SimpleNamespace(valid=[], errors=[])),
    )
    assert describe_groups(admin, ["g"])["g"].state == "dead"
    with pytest.raises(Failed, match="There is no group g"):
        find_groups(admin, ["g"])


def test_a_member_that_joined_between_the_look_and_the_commit() -> None:
    late = SimpleNamespace(topic="t", partition=0, error=KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
    admin: Any = Admin(alter_consumer_group_offsets={"g": done(SimpleNamespace(topic_partitions=[late]))})
    with pytest.raises(Failed, match="a member has joined meanwhile"):
        commit_offsets(admin, "g", {("t", 0): 5})
