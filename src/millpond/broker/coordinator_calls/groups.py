"""The shard hosts of group coordinators: their settings and the history that they write.

Imported when the first group appears: a node without groups starts faster without it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.base.settings import Settings
from millpond.broker.coordination.coordination import ShardHost
from millpond.broker.coordinator_calls.group_history import keep_history
from millpond.broker.coordinator_calls.share_groups import initialize_state
from millpond.broker.replication.partitions import Partition
from millpond.broker.security.authorizer import asks_for_rights
from millpond.config import node as node_settings
from millpond.config.quota import GROUP_CLASSIC_MAX_BYTES, GROUP_MEMBER_MAX_BYTES, GROUPS_MAX_BYTES, MAX_GROUPS
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.memory import GroupMemory
from millpond.coordinators.groups.settings import MINUTE_MS, GroupSettings
from millpond.coordinators.groups.shard import GroupShard
from millpond.coordinators.groups.share.settings import ShareGroupSettings

if TYPE_CHECKING:
    from millpond.broker.context import (
        CoordinationContext,
        DataContext,
        MetadataContext,
        NodeContext,
        SecurityContext,
    )


def group_shard_host(
    node: NodeContext,
    security: SecurityContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    partition: Partition,
) -> ShardHost[GroupShard]:
    def make_shard() -> GroupShard:
        memory = GroupMemory(lambda: node.settings[GROUPS_MAX_BYTES], used_bytes, history_bytes)
        return GroupShard(metadata.image, group_settings(node.settings), node.entropy, check_room, memory)

    def check_room() -> None:
        count = sum(len(shard_host.shard.groups) for shard_host in coordination.groups.shard_hosts())
        security.limits.check(MAX_GROUPS.name, node.settings[MAX_GROUPS], count, "groups here")

    def used_bytes() -> int:
        return sum(shard.memory.used_bytes for shard in coordination.groups.shards())

    def history_bytes() -> int:
        return sum(shard.memory.history_bytes for shard in coordination.groups.shards())

    shard_host: ShardHost[GroupShard] = ShardHost(
        make_shard,
        partition,
        node.clock,
        lambda order: initialize_state(coordination, shard_host, order),
        metadata.lifecycle.has_lease,
        partial(keep_history, node, metadata, data, coordination),
    )
    shard_host.on_limit = security.limits.note_refused
    return shard_host


def group_settings(of_node: Settings) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=of_node[node_settings.GROUP_INITIAL_REBALANCE_DELAY_MS],
        session_timeout_min_ms=of_node[node_settings.GROUP_MIN_SESSION_TIMEOUT_MS],
        session_timeout_max_ms=of_node[node_settings.GROUP_MAX_SESSION_TIMEOUT_MS],
        group_size_max=of_node[node_settings.GROUP_MAX_SIZE],
        member_bytes_max=of_node[GROUP_MEMBER_MAX_BYTES],
        group_bytes_max=of_node[GROUP_CLASSIC_MAX_BYTES],
        offset_metadata_bytes_max=of_node[node_settings.OFFSET_METADATA_MAX_BYTES],
        offsets_retention_ms=of_node[node_settings.OFFSETS_RETENTION_MINUTES] * MINUTE_MS,
        offsets_retention_check_interval_ms=of_node[node_settings.OFFSETS_RETENTION_CHECK_INTERVAL_MS],
        consumer=ConsumerGroupSettings(
            heartbeat_interval_ms=of_node[node_settings.GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS],
            session_timeout_ms=of_node[node_settings.GROUP_CONSUMER_SESSION_TIMEOUT_MS],
            max_size=of_node[node_settings.GROUP_CONSUMER_MAX_SIZE],
            member_max_bytes=of_node[GROUP_MEMBER_MAX_BYTES],
            assignors=of_node[node_settings.GROUP_CONSUMER_ASSIGNORS],
            migration_policy=of_node[node_settings.GROUP_CONSUMER_MIGRATION_POLICY],
            classic_max_size=of_node[node_settings.GROUP_MAX_SIZE],
            classic_max_bytes=of_node[GROUP_CLASSIC_MAX_BYTES],
            hides_topics=asks_for_rights(of_node),
        ),
        share=ShareGroupSettings(
            heartbeat_interval_ms=of_node[node_settings.GROUP_SHARE_HEARTBEAT_INTERVAL_MS],
            session_timeout_ms=of_node[node_settings.GROUP_SHARE_SESSION_TIMEOUT_MS],
            max_size=of_node[node_settings.GROUP_SHARE_MAX_SIZE],
            member_max_bytes=of_node[GROUP_MEMBER_MAX_BYTES],
        ),
    )
