"""The cluster is founded, brokers join and come back: deciding what a node's start changes."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from millpond.metadata.decision import Decision
from millpond.metadata.image import ALL_BROKERS, CLUSTER_ID_NAME, Image
from millpond.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    LeadAnewRecord,
    Record,
    RegisterBrokerRecord,
)

FEATURES: Final = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}
"""Features that a new cluster begins with and an older one is raised to. Level 25 is that of Kafka 4.0."""


def decide_found(image: Image, cluster_id: str) -> Decision[str]:
    """Name the cluster unless it has a name, and agree on the features. The reply is the cluster's id."""
    records: list[Record] = []
    if image.cluster_id is None:
        records.append(ConfigRecord(ALL_BROKERS.type, ALL_BROKERS.name, CLUSTER_ID_NAME, cluster_id))
    records += [
        FeatureLevelRecord(name, level) for name, level in FEATURES.items() if image.features.get(name, 0) < level
    ]
    return Decision(tuple(records), image.cluster_id or cluster_id)


def decide_register_broker(
    image: Image, broker_id: int, incarnation_id: UUID, end_points: tuple[BrokerEndpoint, ...], rack: str | None
) -> Decision[int]:
    """A broker has started. The reply is its epoch, which is higher than that of its earlier lives."""
    known = image.brokers.get(broker_id)
    epoch = known.epoch + 1 if known else 0
    record = RegisterBrokerRecord(broker_id, incarnation_id, epoch, end_points, rack, fenced=False)
    return Decision((record,), epoch)


def decide_begin_leader_epochs(image: Image, broker_id: int, broker_epoch: int) -> Decision[int]:
    """Begin a new epoch in every partition that this broker leads, by one record; the reply is their number.

    For a start after a crash: records that were read but never forced to disk may be gone, and other ones may take
    their offsets. Only a new epoch lets a consumer notice.
    """
    led = sum(partition.leader == broker_id for _, _, partition in image.partitions_of(broker_id))
    return Decision((LeadAnewRecord(broker_id, broker_epoch),) if led else (), led)
