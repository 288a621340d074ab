"""Which replica a consumer should read from (KIP-392): one in its own rack, if the leader is in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext
    from millpond.broker.replication.partitions import Partition
    from millpond.metadata.image import Broker


def closest(node: NodeContext, metadata: MetadataContext, partition: Partition, rack: str, offset: int) -> int | None:
    """The node where a consumer of this rack should go on from this offset; None: here.

    Only leaders send consumers elsewhere. Partitions with several replicas in the rack are shared out among them.
    """
    leading = partition.leading
    brokers = metadata.image.brokers
    if leading is None or _rack_of(brokers.get(node.node_id)) == rack:
        return None
    near = [node_id for node_id in leading.readable_at(offset) if _rack_of(brokers.get(node_id)) == rack]
    if not near:
        return None
    node_id = sorted(near)[partition.name.partition % len(near)]
    leading.send_reader_to(node_id)
    return node_id


def _rack_of(broker: Broker | None) -> str | None:
    return None if broker is None else broker.rack
