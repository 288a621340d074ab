"""The homes of transaction coordinators.

Imported when the first transactional producer appears: a node without transactions starts faster without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.broker.coordination.coordination import Home
from millpond.broker.replication.partitions import Partition
from millpond.config import node
from millpond.config.quota import MAX_TRANSACTIONAL_IDS
from millpond.coordinators.transactions.shard import TransactionSettings, TransactionShard

if TYPE_CHECKING:
    from millpond.broker.services import Services


def transaction_home(broker: Services, partition: Partition) -> Home[TransactionShard]:
    settings = TransactionSettings(
        timeout_ms_max=broker.settings[node.TRANSACTION_MAX_TIMEOUT_MS],
        id_expiration_ms=broker.settings[node.TRANSACTIONAL_ID_EXPIRATION_MS],
    )

    def make_shard() -> TransactionShard:
        return TransactionShard(
            settings,
            partition.leader_epoch,
            broker.producer_ids.take,
            lambda group: broker.groups.partition_of(group),
            check_room,
        )

    def check_room() -> None:
        count = sum(len(home.shard.transactions) for home in broker.transactions.homes())
        broker.limits.check(
            MAX_TRANSACTIONAL_IDS.name, broker.settings[MAX_TRANSACTIONAL_IDS], count, "transactional ids here"
        )

    return Home(make_shard, partition, broker.clock, broker.markers.carry_out, broker.lifecycle.has_lease)
