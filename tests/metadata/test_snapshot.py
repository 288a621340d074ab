"""The image as records: whatever there is, replaying them gives it again."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millpond.metadata.image import Image
from millpond.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from millpond.metadata.snapshot import records_between, records_of

nodes = st.lists(st.integers(1, 4), unique=True, max_size=3).map(tuple)
maybe_nodes = st.none() | nodes
end_points = st.just((BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092),))
partitions = st.tuples(
    *(nodes, nodes, nodes, nodes, st.integers(-1, 4), st.integers(0, 9), st.integers(0, 9)),
    *(st.integers(0, 1), maybe_nodes, maybe_nodes),
)
changes = st.tuples(
    *(maybe_nodes, st.integers(-2, 4), maybe_nodes, maybe_nodes, maybe_nodes),
    *(st.integers(-1, 1), maybe_nodes, maybe_nodes),
)
brokers = st.builds(
    RegisterBrokerRecord,
    *(st.integers(1, 4), st.builds(UUID, int=st.integers(1, 9)), st.integers(0, 99), end_points),
    *(st.none() | st.just("cellar"), st.booleans(), st.booleans()),
    st.sampled_from([(), (UUID(int=7),)]),
)
words = st.sampled_from(["", "a", "b"])
settings = st.builds(ConfigRecord, st.sampled_from([2, 4, 32]), words, words, st.none() | words)


@given(
    st.lists(brokers, max_size=5),
    st.lists(st.lists(st.tuples(partitions, st.none() | changes), max_size=4), max_size=4),
    st.lists(settings, max_size=6),
    st.booleans(),
    st.integers(0, 5000),
)
def test_an_image_comes_back_from_its_records(brokers, topics, settings, removes_first, next_producer_id) -> None:
    image = Image()
    for record in (*brokers, FeatureLevelRecord("f", 3), ProducerIdsRecord(1, 0, next_producer_id)):
        image.replay(record)
    for number, contents in enumerate(topics, 1):
        topic_id = UUID(int=number)
        image.replay(TopicRecord(f"t{number}", topic_id))
        for index, (fields, change) in enumerate(contents):
            image.replay(PartitionRecord(index, topic_id, *fields))
            if change is not None:
                image.replay(PartitionChangeRecord(index, topic_id, *change))
    for record in settings:
        image.replay(record)
    if topics and removes_first:
        image.replay(RemoveTopicRecord(UUID(int=1)))

    again = Image()
    for record in records_of(image):
        again.replay(record)
    assert again == image
    for node in range(1, 5):
        held = [(topic.name, index) for topic, index, _ in again.partitions_of(node)]
        assert sorted(held) == [
            (topic.name, index)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if node in partition.replicas
        ]


def test_what_lies_between_two_images_is_named_once() -> None:
    stays, goes, comes = UUID(int=11), UUID(int=12), UUID(int=13)
    old = Image()
    for record in (
        TopicRecord("stays", stays),
        PartitionRecord(0, stays, (1, 2), (1, 2), leader=1),
        PartitionRecord(1, stays, (1, 2), (1, 2), leader=2),
        TopicRecord("goes", goes),
        PartitionRecord(0, goes, (1,), (1,), leader=1),
        ConfigRecord(2, "stays", "retention.ms", "5"),
        ConfigRecord(2, "stays", "segment.ms", "7"),
    ):
        old.replay(record)
    new = old.copy()
    assert list(records_between(old, new)) == []
    for record in (
        RemoveTopicRecord(goes),
        TopicRecord("goes", comes),
        PartitionRecord(0, comes, (2,), (2,), leader=2),
        PartitionRecord(2, stays, (1, 2), (1, 2), leader=2),
        PartitionChangeRecord(1, stays, isr=(1,), leader=1),
        ConfigRecord(2, "stays", "retention.ms", None),
    ):
        new.replay(record)
    assert old.topics_by_id.keys() == {stays, goes}, "a copy has nothing in common with its original"
    assert set(map(type, records_between(old, new))) == {
        RemoveTopicRecord,
        TopicRecord,
        PartitionRecord,
        PartitionChangeRecord,
        ConfigRecord,
    }
    assert len(list(records_between(old, new))) == 6
    became = Image()
    became.become(new)
    assert became == new
