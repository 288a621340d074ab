from uuid import UUID

from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.brokers import FEATURES, Registration, decide_found, decide_register
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
LAYERS = NodeLayers(node_settings({}))
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


def test_a_broker_alone_begins_new_epochs_only_where_it_leads_and_may_have_lost_something(apply) -> None:
    image = Image()
    image.replay(TopicRecord("a", A))
    first = decide_register(image, LAYERS, Registration(1, UUID(int=5), END_POINTS, "cellar"), 7, is_alone=True)
    assert first.reply.broker_epoch == 7
    assert apply(image, first) == (RegisterBrokerRecord(1, UUID(int=5), 7, END_POINTS, "cellar", fenced=False),)
    image.replay(PartitionRecord(0, A, (1,), (1,), leader=1))
    clean = decide_register(
        image, LAYERS, Registration(1, UUID(int=6), END_POINTS, previous_epoch=7), 9, is_alone=True
    )
    assert apply(image, clean) == (RegisterBrokerRecord(1, UUID(int=6), 9, END_POINTS, None, fenced=False),)
    crashed = decide_register(image, LAYERS, Registration(1, UUID(int=7), END_POINTS), 12, is_alone=True)
    assert crashed.reply.broker_epoch == 13
    assert apply(image, crashed)[0] == LeadAnewRecord(1, 13)
    assert [partition.leader_epoch for partition in image.topics["a"].partitions] == [1]
