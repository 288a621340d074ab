"""The whole image as records, which recreate it in an empty image. This is the content of a snapshot file."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.metadata.image import NO_DIRECTORY, Broker, Image, Partition, Topic
from millpond.metadata.quotas import records_between_quotas
from millpond.metadata.records import (
    RECOVERED,
    RECOVERING,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)


def records_of(image: Image) -> Iterator[Record]:
    """One record for each thing, in an order in which they can be replayed.

    The image must not change while this is being read.
    """
    for name, level in image.features.items():
        yield FeatureLevelRecord(name, level)
    for broker in image.brokers.values():
        yield broker_record(broker)
    for topic in image.topics.values():
        yield TopicRecord(topic.name, topic.id)
        for index, partition in enumerate(topic.partitions):
            yield _partition_record(topic, index, partition)
    for resource, config in image.configs.items():
        for name, value in config.items():
            yield ConfigRecord(resource.type, resource.name, name, value)
    yield from image.quotas.records()
    if image.next_producer_id:
        yield ProducerIdsRecord(-1, -1, image.next_producer_id)
    yield from image.scram.records()
    yield from image.tokens.records()
    yield from image.acls.records()


def records_between(old: Image, new: Image) -> Iterator[Record]:
    """The differences between two images as records, for followers of the log that missed the actual ones.

    Each thing that was created, deleted or changed is named once; replaying them into the old image would not give
    the new one.
    """
    for name in old.features.keys() | new.features.keys():
        if old.features.get(name) != new.features.get(name):
            yield FeatureLevelRecord(name, new.features.get(name, 0))
    for broker in old.brokers.values():
        if broker.id not in new.brokers:
            yield UnregisterBrokerRecord(broker.id, broker.epoch)
    for broker in new.brokers.values():
        if old.brokers.get(broker.id) != broker:
            yield broker_record(broker)
    for topic_id in old.topics_by_id:
        if topic_id not in new.topics_by_id:
            yield RemoveTopicRecord(topic_id)
    for topic in new.topics.values():
        old_topic = old.topics_by_id.get(topic.id)
        if old_topic is None:
            yield TopicRecord(topic.name, topic.id)
        before = old_topic.partitions if old_topic is not None else []
        for index, partition in enumerate(topic.partitions):
            if index >= len(before):
                yield _partition_record(topic, index, partition)
            elif before[index] != partition:
                yield PartitionChangeRecord(index, topic.id, isr=partition.isr, leader=partition.leader)
    for resource in old.configs.keys() | new.configs.keys():
        was, now = old.config_of(resource), new.config_of(resource)
        for name in was.keys() | now.keys():
            if was.get(name) != now.get(name):
                yield ConfigRecord(resource.type, resource.name, name, now.get(name))
    yield from records_between_quotas(old.quotas, new.quotas)
    yield from new.scram.records_since(old.scram)
    yield from new.tokens.records_since(old.tokens)
    for acl_id in old.acls.by_id.keys() - new.acls.by_id.keys():
        yield RemoveAccessControlEntryRecord(acl_id)
    for record in new.acls.records():
        if record.id not in old.acls.by_id:
            yield record


def broker_record(broker: Broker) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=broker.end_points,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_shutdown,
        log_dirs=() if broker.directory_id == NO_DIRECTORY else (broker.directory_id,),
        features=broker.features,
    )


def _partition_record(topic: Topic, index: int, partition: Partition) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic.id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        leader_recovery_state=RECOVERING if partition.is_recovering else RECOVERED,
        eligible_leader_replicas=partition.elr or None,
        last_known_elr=partition.last_known or None,
    )
