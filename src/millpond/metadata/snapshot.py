"""The whole image as records: replayed into an empty image they give the same one. What a snapshot file holds."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.metadata.image import NO_DIRECTORY, Broker, Image, Partition, Topic
from millpond.metadata.records import (
    RECOVERED,
    RECOVERING,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)


def records_of(image: Image) -> Iterator[Record]:
    """One record for each thing that there is, in an order in which they can be replayed.

    The image must not change while this is being read.
    """
    for name, level in image.features.items():
        yield FeatureLevelRecord(name, level)
    for broker in image.brokers.values():
        yield _broker_record(broker)
    for topic in image.topics.values():
        yield TopicRecord(topic.name, topic.id)
        for index, partition in enumerate(topic.partitions):
            yield _partition_record(topic, index, partition)
    for resource, config in image.configs.items():
        for name, value in config.items():
            yield ConfigRecord(resource.type, resource.name, name, value)
    if image.next_producer_id:
        yield ProducerIdsRecord(-1, -1, image.next_producer_id)


def _broker_record(broker: Broker) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=broker.end_points,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_shutdown,
        log_dirs=() if broker.directory_id == NO_DIRECTORY else (broker.directory_id,),
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
