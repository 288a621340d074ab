"""The shard hosts of transaction coordinators.

Imported when the first transactional producer appears: a node without transactions starts faster without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.coordination.coordination import ShardHost
from millpond.broker.replication.partitions import Partition
from millpond.config import node as node_settings
from millpond.config.quota import MAX_TRANSACTIONAL_IDS
from millpond.coordinators.transactions.shard import TransactionSettings, TransactionShard

if TYPE_CHECKING:
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )


def transaction_shard_host(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    partition: Partition,
) -> ShardHost[TransactionShard]:
    settings = TransactionSettings(
        timeout_ms_max=node.settings[node_settings.TRANSACTION_MAX_TIMEOUT_MS],
        id_expiration_ms=node.settings[node_settings.TRANSACTIONAL_ID_EXPIRATION_MS],
    )

    def make_shard() -> TransactionShard:
        return TransactionShard(
            settings,
            partition.leader_epoch,
            data.producer_ids.take,
            lambda group: coordination.groups.partition_of(group),
            check_room,
        )

    def check_room() -> None:
        count = sum(len(shard_host.shard.transactions) for shard_host in coordination.transactions.shard_hosts())
        security.limits.check(
            MAX_TRANSACTIONAL_IDS.name, node.settings[MAX_TRANSACTIONAL_IDS], count, "transactional ids here"
        )

    return ShardHost(make_shard, partition, node.clock, coordination.markers.carry_out, metadata.lifecycle.has_lease)
