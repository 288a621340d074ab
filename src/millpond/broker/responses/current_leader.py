"""Leader hints in responses (KIP-951): the current leader of a partition, and its endpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.base.named_tuple import NamedTuple
from millpond.broker.responses.partition_states import likely_leader

if TYPE_CHECKING:
    from millpond.broker.context import DataContext, MetadataContext, NodeContext
    from millpond.broker.requests.connection import Connection

MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors after which a client looks for another leader."""


class CurrentLeader(NamedTuple):
    topic_id: UUID
    node_id: int
    leader_epoch: int


def current_leader(
    node: NodeContext, metadata: MetadataContext, data: DataContext, topic: str | UUID, index: int
) -> CurrentLeader | None:
    """The partition's leader in this node's image; None if it has none, or the partition is unknown."""
    image = metadata.image
    known = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    partition = known.partitions[index]
    leader = likely_leader(node, metadata, data, known.name, index, partition)
    # The image keeps a leader that is gone if it has the only replica.
    return CurrentLeader(known.id, leader, partition.leader_epoch) if image.is_active(leader) else None


def endpoints(
    node: NodeContext, connection: Connection, node_ids: Collection[int]
) -> Iterator[tuple[int, str, int, str | None]]:
    """Id, host, port and rack of these nodes, as the client can reach them."""
    if node_ids:
        for address in node.addresses_for(connection):
            if address[0] in node_ids:
                yield address
