"""Groups as a program sees and changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millpond.admin.errors import Refused
from millpond.admin.groups import (
    CLASSIC,
    CONSUMER,
    DEAD,
    EMPTY,
    STABLE,
    Group,
    Member,
    commit_offsets,
    delete_groups,
    describe_group,
    find_groups,
    list_groups,
    refuse_if_active,
)
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered
from millpond.remote.offsets import committed_by_group
from millpond.testing import Pond


@contextmanager
def member_of(pond: Pond, group: str, topic: str, **settings: object) -> Iterator[None]:
    """Somebody who has read and committed one record and stays."""
    consumer = pond.consumer(group, client_id="till", **settings)
    consumer.subscribe([topic])
    try:
        message = None
        while message is None or message.error():
            message = consumer.poll(0.1)
        consumer.commit(message, asynchronous=False)
        yield
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(CLASSIC, {"group_instance_id": "till-1"}), (CONSUMER, {"group_protocol": "consumer"})],
)
def test_a_group_with_a_member_and_after_it(
    cluster: Cluster, pond: Pond, topic: str, kind: str, settings: dict[str, object]
) -> None:
    name = f"{topic}-{kind}"
    pond.produce(topic, *"abc", partition=0)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with member_of(pond, name, topic, **settings):
        group = describe_group(cluster, name)
        assert (group.id, group.state, group.type) == (name, STABLE, kind)
        (member,) = group.members
        assert (member.client, member.host, member.partitions) == ("till", "127.0.0.1", (one, two))
        assert member.instance == settings.get("group_instance_id")
        assert group.owners == {one: member, two: member}
        assert group.coordinator
        (listed,) = [each for each in list_groups(cluster) if each.group == name]
        assert (listed.state, listed.type) == (STABLE, kind)
        assert committed_by_group(cluster, name) == {one: 1}
        with pytest.raises(Refused, match="a member has joined meanwhile; stop it and try again"):
            commit_offsets(cluster, name, {one: 0})
        with pytest.raises(Answered, match=f"Group {name} was not deleted: NON_EMPTY_GROUP"):
            delete_groups(cluster, [name])
    if kind == CLASSIC:
        # A static member is only missed when its session is over.
        return
    assert describe_group(cluster, name).state == EMPTY
    commit_offsets(cluster, name, {one: 2, two: 0})
    assert committed_by_group(cluster, name) == {one: 2, two: 0}
    delete_groups(cluster, [name])
    assert describe_group(cluster, name).state == DEAD
    assert committed_by_group(cluster, name) == {}


def test_a_group_that_exists_only_by_its_offsets(cluster: Cluster, topic: str) -> None:
    commit_offsets(cluster, f"{topic}-offsets", {TopicPartition(topic, 0): 0})
    (group,) = find_groups(cluster, [f"{topic}-offsets"])
    assert (group.state, group.members) == (EMPTY, ())


def test_one_that_is_not_there_is_refused_with_the_nearest_name(cluster: Cluster, topic: str) -> None:
    commit_offsets(cluster, "billing-of-orders", {TopicPartition(topic, 0): 0})
    with pytest.raises(Refused, match="There is no group billing-of-order; did you mean billing-of-orders"):
        find_groups(cluster, ["billing-of-order"])
    with pytest.raises(Refused, match="see those that are there with `millpond group list`"):
        find_groups(cluster, ["zzzzzzzz"])


def test_members_are_named_up_to_a_point() -> None:
    group = Group("g", STABLE, CLASSIC, "range", "localhost:9092")
    refuse_if_active(group, "to reset it")
    members = tuple(Member(f"id-{at}", None, f"app-{at}", "10.0.0.1") for at in range(5))
    with pytest.raises(Refused) as refusal:
        refuse_if_active(Group("g", STABLE, CLASSIC, "range", "localhost:9092", members), "to reset it")
    assert str(refusal.value).startswith(
        "Group g has 5 active members (app-0 on 10.0.0.1, app-1 on 10.0.0.1, app-2 on 10.0.0.1 and 2 more): "
        "stop them first to reset it; "
    )
