"""The shard hosts of share coordinators.

Imported when the first share group appears: a node without them starts faster without it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.errors import Refused
from millpond.broker.coordination.coordination import ShardHost
from millpond.broker.replication.partitions import Partition
from millpond.config import node as node_settings
from millpond.coordinators.shares.shard import ShareCoordinatorSettings, ShareShard

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext


def share_shard_host(node: NodeContext, metadata: MetadataContext, partition: Partition) -> ShardHost[ShareShard]:
    settings = ShareCoordinatorSettings(
        updates_per_snapshot=node.settings[node_settings.SHARE_COORDINATOR_SNAPSHOT_UPDATES],
        cold_interval_ms=node.settings[node_settings.SHARE_COORDINATOR_COLD_SNAPSHOT_INTERVAL_MS],
    )

    def topic_exists(topic_id: UUID, index: int) -> bool:
        topic = metadata.image.topics_by_id.get(topic_id)
        return topic is not None and index < len(topic.partitions)

    def make_shard() -> ShareShard:
        return ShareShard(settings, topic_exists)

    return ShardHost(
        *(make_shard, partition, node.clock, _no_orders, metadata.lifecycle.has_lease),
        after_step=_Pruner(node, partition).look,
    )


class _Pruner:
    """Deletes from the log, now and then, what the shard no longer needs. The topic is not compacted."""

    def __init__(self, node: NodeContext, partition: Partition) -> None:
        self._node = node
        self._partition = partition
        self._leader_epoch = partition.leader_epoch
        self._due_ms = node.clock.monotonic_ms()

    def look(self, shard: ShareShard) -> None:
        now_ms = self._node.clock.monotonic_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._node.settings[node_settings.SHARE_COORDINATOR_PRUNE_INTERVAL_MS]
        needed_offset, log = shard.first_needed_offset(), self._partition.log
        if needed_offset > log.start_offset:
            # Only when the snapshots are committed: otherwise another leader may need what is before them.
            self._partition.after_commit(log.end_offset, needed_offset).then(self._delete_before, _ignore)

    def _delete_before(self, offset: int) -> None:
        partition = self._partition
        if partition.is_leader and partition.leader_epoch == self._leader_epoch:
            with suppress(Refused):
                partition.delete_before(offset).then(_ignore, _ignore)


def _ignore(_: object) -> None: ...


def _no_orders(order: object) -> None:
    raise AssertionError(f"a share coordinator gives no orders: {order}")
