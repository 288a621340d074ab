from dataclasses import replace
from typing import get_args
from uuid import UUID

import pytest

from millpond.metadata.image import Broker, Image, Partition, Resource
from millpond.metadata.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    LeadAnewRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaPart,
    Record,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)

A, B = UUID(int=1), UUID(int=2)
TOPIC = ResourceType.TOPIC


def replayed(*records: Record) -> Image:
    image = Image()
    for record in records:
        image.replay(record)
    return image


def test_a_topic_and_its_partitions_come_into_being() -> None:
    image = replayed(
        TopicRecord("a", A),
        PartitionRecord(0, A, (1, 2), (1,), leader=1),
        PartitionRecord(1, A, (2, 1), (2,), leader=2, leader_epoch=4, partition_epoch=7),
    )
    assert image.topics["a"] is image.topics_by_id[A]
    assert image.partition("a", 0) == Partition((1, 2), (1,), 1, 0, 0)
    assert image.partition("a", 1) == Partition((2, 1), (2,), 2, 4, 7)
    assert image.partitions_total == 2


@pytest.mark.parametrize(("topic", "partition"), [("a", 1), ("a", -1), ("b", 0)])
def test_a_partition_that_is_not_there(topic: str, partition: int) -> None:
    image = replayed(TopicRecord("a", A), PartitionRecord(0, A, (1,), (1,), leader=1))
    assert image.partition(topic, partition) is None


def test_a_removed_topic_leaves_nothing_behind() -> None:
    image = replayed(
        TopicRecord("a.b", A),
        ConfigRecord(TOPIC, "a.b", "retention.ms", "1"),
        PartitionRecord(0, A, (1,), (1,), leader=1),
        RemoveTopicRecord(A),
    )
    assert image == Image()


def test_a_name_can_be_used_again_by_another_topic() -> None:
    image = replayed(TopicRecord("a", A), RemoveTopicRecord(A), TopicRecord("a", B))
    assert image.topics["a"].id == B
    assert list(image.topics_by_id) == [B]


def test_a_change_of_the_isr_alone_keeps_the_leader_epoch() -> None:
    image = replayed(
        TopicRecord("a", A),
        PartitionRecord(0, A, (1, 2), (1, 2), leader=1, leader_epoch=3, partition_epoch=5),
        PartitionChangeRecord(0, A, isr=(1,)),
    )
    assert image.partition("a", 0) == Partition((1, 2), (1,), 1, 3, 6)


def test_naming_a_leader_begins_an_epoch_even_if_it_is_the_same() -> None:
    image = replayed(
        TopicRecord("a", A),
        PartitionRecord(0, A, (1, 2), (1, 2), leader=1, leader_epoch=3, partition_epoch=5),
        PartitionChangeRecord(0, A, leader=1),
    )
    assert image.partition("a", 0) == Partition((1, 2), (1, 2), 1, 4, 6)


def test_a_reassignment_names_whom_it_adds_and_removes() -> None:
    image = replayed(
        TopicRecord("a", A),
        PartitionRecord(0, A, (1,), (1,), leader=1),
        PartitionChangeRecord(0, A, replicas=(2, 1), adding_replicas=(2,), removing_replicas=(1,)),
        PartitionChangeRecord(0, A, isr=(1, 2)),
        PartitionChangeRecord(0, A, replicas=(2,), isr=(2,), leader=2, adding_replicas=(), removing_replicas=()),
    )
    assert image.partition("a", 0) == Partition((2,), (2,), 2, 1, 3)


def test_settings_are_set_and_taken_away() -> None:
    image = replayed(
        ConfigRecord(TOPIC, "a", "retention.ms", "1"),
        ConfigRecord(TOPIC, "a", "segment.ms", "2"),
        ConfigRecord(TOPIC, "a", "retention.ms", None),
        ConfigRecord(TOPIC, "b", "never.set", None),
    )
    assert image.topic_config("a") == {"segment.ms": "2"}
    assert image.topic_config("b") == {}
    image.replay(ConfigRecord(TOPIC, "a", "segment.ms", None))
    assert image.configs == {}


def test_the_clusters_id_is_a_setting_of_all_brokers() -> None:
    image = replayed(ConfigRecord(ResourceType.BROKER, "", "cluster.id", "pond"))
    assert image.cluster_id == "pond"
    assert image.config_of(Resource(ResourceType.BROKER, "1")) == {}
    assert Image().cluster_id is None


def test_brokers_come_and_go(broker) -> None:
    image = replayed(broker(1, "cellar", fenced=True))
    assert image.brokers[1] == Broker(1, UUID(int=1001), 0, broker(1).end_points, "cellar", True)
    image.replay(BrokerRegistrationChangeRecord(1, 0, fenced=-1))
    assert not image.brokers[1].fenced
    image.replay(BrokerRegistrationChangeRecord(1, 0, fenced=0))
    assert not image.brokers[1].fenced
    image.replay(BrokerRegistrationChangeRecord(1, 0, fenced=1))
    assert image.brokers[1].fenced
    image.replay(UnregisterBrokerRecord(1, 0))
    assert image.brokers == {}


def test_a_broker_is_active_unless_it_is_fenced_or_on_its_way_out(broker) -> None:
    image = replayed(broker(1, fenced=True))
    assert not image.is_active(1)
    assert not image.is_active(2), "nobody knows it"
    image.replay(BrokerRegistrationChangeRecord(1, 0, fenced=-1))
    assert image.is_active(1)
    image.replay(BrokerRegistrationChangeRecord(1, 0, in_controlled_shutdown=1))
    assert (image.brokers[1].in_shutdown, image.brokers[1].fenced, image.is_active(1)) == (True, False, False)
    image.replay(replace(broker(1), log_dirs=(B,)))
    assert (image.brokers[1].in_shutdown, image.brokers[1].directory_id) == (False, B), "another life begins"


def test_who_is_eligible_and_whether_the_leader_recovers() -> None:
    image = replayed(
        TopicRecord("a", A),
        PartitionRecord(0, A, (1, 2), (1,), leader=1, eligible_leader_replicas=(2,), leader_recovery_state=1),
    )
    assert image.partition("a", 0) == Partition((1, 2), (1,), 1, 0, 0, elr=(2,), is_recovering=True)
    image.replay(PartitionChangeRecord(0, A, isr=(), eligible_leader_replicas=(), last_known_elr=(1,)))
    assert image.partition("a", 0) == Partition((1, 2), (), 1, 0, 1, last_known=(1,), is_recovering=True)
    image.replay(PartitionChangeRecord(0, A, isr=(1,), last_known_elr=(), leader_recovery_state=0))
    assert image.partition("a", 0) == Partition((1, 2), (1,), 1, 0, 2)


def test_features_and_producer_ids() -> None:
    image = replayed(FeatureLevelRecord("f", 2), FeatureLevelRecord("g", 1), FeatureLevelRecord("f", 0))
    assert image.features == {"g": 1}
    image.replay(ProducerIdsRecord(1, 0, 3000))
    assert image.next_producer_id == 3000


def test_names_of_one_sound_are_namesakes() -> None:
    image = replayed(TopicRecord("a.b_c", A), TopicRecord("abc", B))
    assert image.namesakes("a_b.c") == ("a.b_c",)
    assert image.namesakes("a-b-c") == ()


def test_which_partitions_a_node_holds() -> None:
    image = replayed(
        TopicRecord("a", A),
        PartitionRecord(0, A, (1, 2), (1,), leader=1),
        PartitionRecord(1, A, (2,), (2,), leader=2),
    )
    assert [(topic.name, number) for topic, number, _ in image.partitions_of(1)] == [("a", 0)]
    assert [(topic.name, number) for topic, number, _ in image.partitions_of(2)] == [("a", 0), ("a", 1)]
    image.replay(PartitionChangeRecord(0, A, replicas=(1, 3)))
    assert [(topic.name, number) for topic, number, _ in image.partitions_of(2)] == [("a", 1)]
    assert [(topic.name, number) for topic, number, _ in image.partitions_of(3)] == [("a", 0)]
    image.replay(RemoveTopicRecord(A))
    assert [list(image.partitions_of(node)) for node in (1, 2, 3)] == [[], [], []]


def test_every_kind_of_record_can_be_replayed(broker) -> None:
    history = [
        NoOpRecord(),
        broker(1),
        BrokerRegistrationChangeRecord(1, 0, 1),
        TopicRecord("a", A),
        PartitionRecord(0, A, (1,), (1,), leader=1),
        PartitionChangeRecord(0, A, leader=1),
        LeadAnewRecord(1, 0),
        RemoveTopicRecord(A),
        ConfigRecord(TOPIC, "a", "b", "c"),
        FeatureLevelRecord("f", 1),
        ProducerIdsRecord(1, 0, 1000),
        ClientQuotaRecord((QuotaPart("user", None),), "request_percentage", 50.0),
        UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4096),
        RemoveUserScramCredentialRecord("alice", 1),
        DelegationTokenRecord("User:alice", "User:alice", (), 1, 3, 2, "t"),
        RemoveDelegationTokenRecord("t"),
        AccessControlEntryRecord(A, 2, "a", 3, "User:alice", "*", 3, 3),
        RemoveAccessControlEntryRecord(A),
        UnregisterBrokerRecord(1, 0),
    ]
    assert {type(record) for record in history} == set(get_args(Record))
    replayed(*history)
