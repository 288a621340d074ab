"""Whom to ask instead (KIP-951): who leads a partition now, and where that node is."""

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
"""What tells a client that the leader may be another one."""


class CurrentLeader(NamedTuple):
    topic_id: UUID
    node_id: int
    leader_epoch: int


def current_leader(
    node: NodeContext, metadata: MetadataContext, data: DataContext, topic: str | UUID, index: int
) -> CurrentLeader | None:
    """Who leads the partition as far as this node knows; None where that is nobody, or the partition unknown."""
    image = metadata.image
    known = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    partition = known.partitions[index]
    leader = likely_leader(node, metadata, data, known.name, index, partition)
    # One that is gone may still stand there as the leader of what only it has.
    return CurrentLeader(known.id, leader, partition.leader_epoch) if image.is_active(leader) else None


def endpoints(
    node: NodeContext, connection: Connection, node_ids: Collection[int]
) -> Iterator[tuple[int, str, int, str | None]]:
    """Id, host, port and rack of these nodes, as the client can reach them."""
    if node_ids:
        for address in node.addresses_for(connection):
            if address[0] in node_ids:
                yield address
