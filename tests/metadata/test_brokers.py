from uuid import UUID

from millpond.metadata.brokers import FEATURES, decide_begin_leader_epochs, decide_found, decide_register_broker
from millpond.metadata.image import Image
from millpond.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    LeadAnewRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)

A = UUID(int=1)
END_POINTS = (BrokerEndpoint("PLAINTEXT", "localhost", 9092),)


def test_a_cluster_is_founded_once(apply) -> None:
    image = Image()
    founded = decide_found(image, "pond")
    assert founded.reply == "pond"
    assert apply(image, founded) == (
        ConfigRecord(ResourceType.BROKER, "", "cluster.id", "pond"),
        *(FeatureLevelRecord(name, level) for name, level in FEATURES.items()),
    )
    again = decide_found(image, "another")
    assert (again.records, again.reply) == ((), "pond")


def test_an_older_cluster_is_raised_to_our_features_and_a_newer_one_is_not_lowered(apply) -> None:
    image = Image()
    apply(image, decide_found(image, "pond"))
    level = FEATURES["metadata.version"]
    image.replay(FeatureLevelRecord("metadata.version", level - 1))
    assert decide_found(image, "pond").records == (FeatureLevelRecord("metadata.version", level),)
    image.replay(FeatureLevelRecord("metadata.version", level + 1))
    assert decide_found(image, "pond").records == ()


def test_each_life_of_a_broker_has_a_higher_epoch(apply) -> None:
    image = Image()
    first = decide_register_broker(image, 1, UUID(int=5), END_POINTS, "cellar")
    assert first.reply == 0
    assert apply(image, first) == (RegisterBrokerRecord(1, UUID(int=5), 0, END_POINTS, "cellar", fenced=False),)
    second = decide_register_broker(image, 1, UUID(int=6), END_POINTS, None)
    assert second.reply == 1
    assert second.records == (RegisterBrokerRecord(1, UUID(int=6), 1, END_POINTS, None, fenced=False),)


def test_new_epochs_begin_only_where_the_broker_leads(apply) -> None:
    image = Image()
    image.replay(TopicRecord("a", A))
    image.replay(PartitionRecord(0, A, (1, 2), (1, 2), leader=1))
    image.replay(PartitionRecord(1, A, (1, 2), (1, 2), leader=2))
    begun = decide_begin_leader_epochs(image, 1, 7)
    assert begun.reply == 1
    assert apply(image, begun) == (LeadAnewRecord(1, 7),)
    assert [partition.leader_epoch for partition in image.topics["a"].partitions] == [1, 0]
    assert decide_begin_leader_epochs(image, 3, 7).records == (), "it leads nothing"
