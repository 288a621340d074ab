"""The homes of group coordinators: which settings they go by, and the history that they leave.

Imported when the first group appears: a node without groups starts faster without it.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.base.errors import Refused
from millpond.base.settings import Settings
from millpond.broker.coordination import Home
from millpond.broker.partitions import Partition
from millpond.config import node
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.settings import MINUTE_MS, GroupSettings
from millpond.coordinators.groups.shard import GroupShard
from millpond.wire.records import Record, encode_batch

if TYPE_CHECKING:
    from millpond.broker.services import Services

HISTORY_TOPIC = "__group_history"
HISTORY_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(30 * 24 * 60 * MINUTE_MS),
    "retention.bytes": str(64 << 20),
    "segment.bytes": str(8 << 20),
    "flush.ack": "never",
}
"""A month of it, and never more than a disk would notice."""


def group_home(broker: Services, partition: Partition) -> Home[GroupShard]:
    def make_shard() -> GroupShard:
        return GroupShard(broker.image, group_settings(broker.settings), broker.entropy)

    return Home(make_shard, partition, broker.clock, _no_orders, partial(keep_history, broker))


def keep_history(broker: Services, shard: GroupShard) -> None:
    """Write down every rebalance that is over, for whoever asks later why it happened."""
    ahead_ms = shard.shared.wall_ahead_ms
    finished = [(group_id, over.as_json(ahead_ms)) for group_id, over in shard.take_finished()]
    if not finished:
        return
    if broker.partitions.get(HISTORY_TOPIC, 0) is None:
        broker.create_topic(HISTORY_TOPIC, 1, HISTORY_CONFIG).then(lambda _: _write_history(broker, finished))
    else:
        _write_history(broker, finished)


def _write_history(broker: Services, finished: list[tuple[str, dict[str, Any]]]) -> None:
    partition = broker.partitions.get(HISTORY_TOPIC, 0)
    if partition is None:
        broker.journal("the history of a rebalance is lost", groups=len(finished), reason="its topic is offline")
        return
    now_ms = broker.clock.wall_ms()
    records = [
        Record(index, now_ms, group_id.encode(), json.dumps({"group": group_id, **over}).encode())
        for index, (group_id, over) in enumerate(finished)
    ]
    try:
        partition.append_own(encode_batch(records))
    except Refused as refused:
        broker.journal("the history of a rebalance is lost", groups=len(finished), reason=refused)


def group_settings(of_node: Settings) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=of_node[node.GROUP_INITIAL_REBALANCE_DELAY_MS],
        session_timeout_min_ms=of_node[node.GROUP_MIN_SESSION_TIMEOUT_MS],
        session_timeout_max_ms=of_node[node.GROUP_MAX_SESSION_TIMEOUT_MS],
        group_size_max=of_node[node.GROUP_MAX_SIZE],
        offset_metadata_bytes_max=of_node[node.OFFSET_METADATA_MAX_BYTES],
        offsets_retention_ms=of_node[node.OFFSETS_RETENTION_MINUTES] * MINUTE_MS,
        offsets_retention_check_interval_ms=of_node[node.OFFSETS_RETENTION_CHECK_INTERVAL_MS],
        consumer=ConsumerGroupSettings(
            heartbeat_interval_ms=of_node[node.GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS],
            session_timeout_ms=of_node[node.GROUP_CONSUMER_SESSION_TIMEOUT_MS],
            max_size=of_node[node.GROUP_CONSUMER_MAX_SIZE],
            assignors=of_node[node.GROUP_CONSUMER_ASSIGNORS],
            migration_policy=of_node[node.GROUP_CONSUMER_MIGRATION_POLICY],
            classic_max_size=of_node[node.GROUP_MAX_SIZE],
        ),
    )


def _no_orders(order: object) -> None:
    raise AssertionError(f"a group coordinator gives no orders: {order}")
