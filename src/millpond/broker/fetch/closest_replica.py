"""Which replica a consumer should read from (KIP-392): one in its own rack, if the leader is in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.broker.fetch.source import FetchSource
    from millpond.broker.replication.partitions import Partition
    from millpond.metadata.image import Broker


def closest_replica(source: FetchSource, partition: Partition, rack: str, offset: int) -> int | None:
    """The node where a consumer in this rack should continue from this offset; None if that is here.

    Only leaders redirect consumers. Partitions with several replicas in the rack are spread over them.
    """
    leader_role = partition.leader_role
    brokers = source.image.brokers
    if leader_role is None or _rack_of(brokers.get(source.node_id)) == rack:
        return None
    near = [node_id for node_id in leader_role.readable_at(offset) if _rack_of(brokers.get(node_id)) == rack]
    if not near:
        return None
    node_id = sorted(near)[partition.name.partition % len(near)]
    leader_role.send_reader_to(node_id)
    return node_id


def _rack_of(broker: Broker | None) -> str | None:
    return None if broker is None else broker.rack
