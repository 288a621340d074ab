"""Groups as a program sees and changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from millpond.admin.errors import Refused
from millpond.admin.groups import (
    CLASSIC,
    CONSUMER,
    DEAD,
    EMPTY,
    SHARE,
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
from millpond.admin.lag import LagWatch
from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.remote.errors import Answered
from millpond.remote.offsets import committed_by_group
from millpond.testing import Pond
from millpond.wire import messages as m


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
        with pytest.raises(Refused, match="a member has joined in the meantime; stop it and try again"):
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


def test_a_share_group_is_listed_described_and_deleted(cluster: Cluster, topic: str) -> None:
    name, member_id = f"{topic}-shared", str(UUID(int=1))

    def beat(epoch: int, topics: list[str] | None) -> m.ShareGroupHeartbeatResponse:
        request = m.ShareGroupHeartbeatRequest(
            group_id=name, member_id=member_id, member_epoch=epoch, subscribed_topic_names=topics
        )
        kind = m.ShareGroupHeartbeatResponse
        reply = cluster.retrying(
            "join", lambda: cluster.ask_coordinator("group", name, request, kind, lambda each: each.error_code)
        )
        assert reply.error_code == ErrorCode.NONE, reply
        return reply

    epoch = beat(0, [topic]).member_epoch
    partitions = (TopicPartition(topic, 0), TopicPartition(topic, 1))
    while describe_group(cluster, name).members[0].partitions != partitions:
        epoch = beat(epoch, None).member_epoch
    (group,) = find_groups(cluster, [name])
    assert (group.state, group.type) == (STABLE, SHARE)
    (listed,) = [each for each in list_groups(cluster, with_share=True) if each.group == name]
    assert (listed.state, listed.type) == (STABLE, SHARE)
    assert name not in [each.group for each in list_groups(cluster)]
    with pytest.raises(Answered, match=f"Group {name} was not deleted: NON_EMPTY_GROUP"):
        delete_groups(cluster, [name])
    (lag,) = LagWatch(cluster, [name], sample_seconds=0).look()
    assert (lag.group.type, lag.lag) == (SHARE, 0), "nothing has been written"
    beat(-1, None)
    assert describe_group(cluster, name).state == EMPTY
    delete_groups(cluster, [name])
    assert describe_group(cluster, name).state == DEAD


def test_a_group_that_exists_only_by_its_offsets(cluster: Cluster, topic: str) -> None:
    commit_offsets(cluster, f"{topic}-offsets", {TopicPartition(topic, 0): 0})
    (group,) = find_groups(cluster, [f"{topic}-offsets"])
    assert (group.state, group.members) == (EMPTY, ())


def test_an_unknown_name_is_refused_with_the_nearest_one(cluster: Cluster, topic: str) -> None:
    commit_offsets(cluster, "billing-of-orders", {TopicPartition(topic, 0): 0})
    with pytest.raises(Refused, match="There is no group billing-of-order; did you mean billing-of-orders"):
        find_groups(cluster, ["billing-of-order"])
    with pytest.raises(Refused, match="list them with `millpond group list`"):
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
