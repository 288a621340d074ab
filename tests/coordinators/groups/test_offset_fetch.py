"""OffsetFetch in all its shapes."""

from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups import offset_fetch
from millpond.wire import messages as m

Kind = m.OffsetFetchRequest


@pytest.fixture
def read(coordinator):
    coordinator.commit(5, topic="t", partition=1, leader_epoch=2, metadata="x")
    coordinator.commit(6, topic="u", partition=0)
    return coordinator


@pytest.mark.parametrize("version", range(1, 8))
def test_one_group_in_the_older_shape(read, version: int) -> None:
    topics = [Kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    reply = read.ask(Kind(group_id="g", topics=topics), version)
    assert reply.error_code == 0
    found = [(each.partition_index, each.committed_offset, each.metadata) for each in reply.topics[0].partitions]
    assert found == [(0, -1, ""), (1, 5, "x")]
    assert reply.topics[0].partitions[1].committed_leader_epoch == 2


@pytest.mark.parametrize("version", range(2, 8))
def test_no_topics_means_all(read, version: int) -> None:
    reply = read.ask(Kind(group_id="g", topics=None), version)
    assert [(topic.name, topic.partitions[0].committed_offset) for topic in reply.topics] == [("t", 5), ("u", 6)]


@pytest.mark.parametrize("version", [8, 9])
def test_several_groups(read, version: int) -> None:
    read.commit(7, group="h")
    asked = [Kind.OffsetFetchRequestGroup(group_id=each, topics=None) for each in ("g", "h", "nobody")]
    reply = read.ask(Kind(groups=asked), version)
    assert [(each.group_id, each.error_code, len(each.topics)) for each in reply.groups] == [
        ("g", 0, 2),
        ("h", 0, 1),
        ("nobody", 0, 0),
    ]


def test_topics_by_id(read) -> None:
    topics = [
        Kind.OffsetFetchRequestTopics(topic_id=UUID(int=1), partition_indexes=[1]),
        Kind.OffsetFetchRequestTopics(topic_id=UUID(int=99), partition_indexes=[0]),
    ]
    reply = read.ask(Kind(groups=[Kind.OffsetFetchRequestGroup(group_id="g", topics=topics)]), 10)
    first, second = reply.groups[0].topics
    assert (first.topic_id, first.partitions[0].committed_offset) == (UUID(int=1), 5)
    assert (second.topic_id, second.partitions[0].error_code) == (UUID(int=99), ErrorCode.UNKNOWN_TOPIC_ID)


def test_all_topics_by_id_leaves_out_those_that_are_gone(read, remove_topic) -> None:
    remove_topic("u")
    reply = read.ask(Kind(groups=[Kind.OffsetFetchRequestGroup(group_id="g", topics=None)]), 10)
    assert [topic.topic_id for topic in reply.groups[0].topics] == [UUID(int=1)]


def test_all_stable_offsets_name_those_that_are_not(read) -> None:
    read.commit_in_transaction(1, partition=1)
    read.commit_in_transaction(1, partition=4)
    asked = Kind.OffsetFetchRequestGroup(group_id="g", topics=None)
    reply = read.ask(Kind(groups=[asked], require_stable=True), 9)
    found = {
        (topic.name, each.partition_index): each.error_code
        for topic in reply.groups[0].topics
        for each in topic.partitions
    }
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert found == {("t", 1): unstable, ("t", 4): unstable, ("u", 0): 0}


def test_fetch_offsets_is_one_group_without_a_step(read) -> None:
    asked = Kind.OffsetFetchRequestGroup(group_id="g", topics=None)
    assert read.shard.fetch_offsets(asked, 9, False).topics[0].partitions[0].committed_offset == 5


@pytest.mark.parametrize("require_stable", [False, True])
@pytest.mark.parametrize("version", [8, 9, 10])
def test_what_is_built_in_steps_is_what_is_built_at_once(
    read, remove_topic, monkeypatch: pytest.MonkeyPatch, version: int, require_stable: bool
) -> None:
    read.commit_in_transaction(1, partition=1)
    read.commit_in_transaction(1, partition=4)
    read.commit(8, topic="t", partition=2)
    remove_topic("u")
    asked = Kind.OffsetFetchRequestGroup(group_id="g", topics=None)
    at_once = read.shard.fetch_offsets(asked, version, require_stable)
    monkeypatch.setattr(offset_fetch, "BUILT_AT_ONCE", 1)
    group = read.shard.fetch_offsets(asked, version, require_stable)
    assert isinstance(group.topics, offset_fetch.AllOffsets)
    # What is committed from now on is not part of it.
    read.commit(99, topic="t", partition=2)
    steps = group.topics.topics_in_steps()
    yields = 0
    while True:
        try:
            next(steps)
            yields += 1
        except StopIteration as end:
            group.topics = end.value
            break
    assert yields >= 2
    assert group == at_once
