"""Derives the limits of a log from its topic's settings."""

from __future__ import annotations

from millpond.base.settings import Settings
from millpond.config import node, topic
from millpond.config.quota import MAX_PRODUCERS_PER_PARTITION
from millpond.log.limits import LogLimits


def log_limits(of_topic: Settings, of_node: Settings) -> LogLimits:
    policy = of_topic[topic.CLEANUP_POLICY]
    return LogLimits(
        segment_bytes=of_topic[topic.SEGMENT_BYTES],
        segment_ms=of_topic[topic.SEGMENT_MS],
        index_interval_bytes=of_topic[topic.INDEX_INTERVAL_BYTES],
        index_bytes_max=of_topic[topic.SEGMENT_INDEX_BYTES],
        retention_ms=of_topic[topic.RETENTION_MS],
        retention_bytes=of_topic[topic.RETENTION_BYTES],
        cleanup_delete="delete" in policy,
        cleanup_compact="compact" in policy,
        min_cleanable_dirty_ratio=of_topic[topic.MIN_CLEANABLE_DIRTY_RATIO],
        min_compaction_lag_ms=of_topic[topic.MIN_COMPACTION_LAG_MS],
        max_compaction_lag_ms=of_topic[topic.MAX_COMPACTION_LAG_MS],
        delete_retention_ms=of_topic[topic.DELETE_RETENTION_MS],
        file_delete_delay_ms=of_topic[topic.FILE_DELETE_DELAY_MS],
        max_message_bytes=of_topic[topic.MAX_MESSAGE_BYTES],
        timestamp_type_append=of_topic[topic.MESSAGE_TIMESTAMP_TYPE] == "LogAppendTime",
        timestamp_before_max_ms=of_topic[topic.MESSAGE_TIMESTAMP_BEFORE_MAX_MS],
        timestamp_after_max_ms=of_topic[topic.MESSAGE_TIMESTAMP_AFTER_MAX_MS],
        compression_type=of_topic[topic.COMPRESSION_TYPE],
        producer_id_expiration_ms=of_node[node.PRODUCER_ID_EXPIRATION_MS],
        producers_max=of_node[MAX_PRODUCERS_PER_PARTITION],
        dedupe_buffer_bytes=of_node[node.CLEANER_DEDUPE_BUFFER_BYTES],
        flush_messages=of_topic[topic.FLUSH_MESSAGES],
        flush_ms=of_topic[topic.FLUSH_MS],
    )
