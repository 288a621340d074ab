from uuid import UUID

from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.metadata.brokers import Registration, decide_found, decide_register
from millpond.metadata.features import SUPPORTED, Levels, features_to_record
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
    founded = decide_found(image, "pond", SUPPORTED)
    assert founded.reply == "pond"
    assert apply(image, founded) == (
        ConfigRecord(ResourceType.BROKER, "", "cluster.id", "pond"),
        *(FeatureLevelRecord(name, levels.newest) for name, levels in SUPPORTED.items() if name != "kraft.version"),
    )
    again = decide_found(image, "another", SUPPORTED)
    assert (again.records, again.reply) == ((), "pond")


def test_the_levels_of_a_cluster_are_not_changed_by_a_new_controller(apply) -> None:
    image = Image()
    older = {"metadata.version": Levels(25, 25), "group.version": Levels(0, 1)}
    apply(image, decide_found(image, "pond", older))
    assert image.features == {"metadata.version": 25, "group.version": 1}
    assert decide_found(image, "pond", SUPPORTED).records == ()


def test_a_cluster_from_before_there_were_levels_gets_the_first(apply) -> None:
    image = Image()
    image.replay(ConfigRecord(ResourceType.BROKER, "", "cluster.id", "pond"))
    apply(image, decide_found(image, "pond", SUPPORTED))
    assert image.features == {"metadata.version": 25, "group.version": 1, "transaction.version": 2}


def test_a_broker_that_does_not_support_what_is_final_is_refused(apply) -> None:
    image = Image()
    apply(image, decide_found(image, "pond", SUPPORTED))
    silent = decide_register(image, LAYERS, Registration(1, UUID(int=5), END_POINTS), 7)
    assert (silent.records, silent.reply.verdict.code.name) == ((), "UNSUPPORTED_VERSION")
    assert silent.reply.verdict.message == (
        "node 1 runs an incompatible version: the cluster is at metadata.version 27, and it supports 25"
    )
    image.replay(FeatureLevelRecord("metadata.version", 25))
    image.replay(FeatureLevelRecord("share.version", 0))
    assert decide_register(image, LAYERS, Registration(1, UUID(int=5), END_POINTS), 7).reply.verdict.ok


def test_a_broker_that_an_older_controller_registered_tells_what_it_supports(apply) -> None:
    image = Image()
    apply(image, decide_register(image, LAYERS, Registration(1, UUID(int=5), END_POINTS), 7))
    told = Registration(1, UUID(int=5), END_POINTS, features=features_to_record(SUPPORTED))
    again = decide_register(image, LAYERS, told, 9, lives=True)
    assert again.reply.broker_epoch == 7
    before = image.brokers[1]
    apply(image, again)
    assert image.brokers[1].features == told.features
    assert (image.brokers[1].epoch, image.brokers[1].fenced) == (before.epoch, before.fenced)
    assert decide_register(image, LAYERS, told, 9, lives=True).records == ()


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


def test_a_folder_moved_after_a_clean_shutdown_keeps_what_it_had(apply) -> None:
    """Its directory id is new, its last broker epoch is the one that is known. An empty disk has no such epoch."""
    image = Image()
    here, there = UUID(int=21), UUID(int=22)
    apply(image, decide_register(image, LAYERS, Registration(1, UUID(int=5), END_POINTS, directory_id=here), 7))
    apply(image, decide_register(image, LAYERS, Registration(2, UUID(int=6), END_POINTS), 8))
    image.replay(TopicRecord("a", A))
    image.replay(PartitionRecord(0, A, (1, 2), isr=(), leader=-1, eligible_leader_replicas=(1,)))

    def eligible_after(previous_epoch: int) -> tuple[int, ...]:
        wanted = Registration(1, UUID(int=8), END_POINTS, directory_id=there, previous_epoch=previous_epoch)
        copy = image.copy()
        copy.replay_all(decide_register(copy, LAYERS, wanted, 20).records)
        return tuple(copy.topics["a"].partitions[0].elr)

    assert eligible_after(7) == (1,)
    assert eligible_after(-1) == ()
