"""From settings to what a log is told: every limit follows its setting."""

from __future__ import annotations

from dataclasses import fields

import pytest

from millpond.broker.limits import log_limits
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.log.limits import LogLimits


def limits(topic: dict[str, str] | None = None, node: dict[str, str] | None = None) -> LogLimits:
    layers = NodeLayers(node_settings(node or {}))
    return log_limits(layers.topic_settings(topic or {}), layers.settings())


def test_the_defaults_of_a_log_are_those_of_the_settings() -> None:
    assert limits() == LogLimits()


@pytest.mark.parametrize(
    ("setting", "value", "field", "wanted"),
    [
        ("segment.bytes", "20000", "segment_bytes", 20000),
        ("segment.ms", "5", "segment_ms", 5),
        ("index.interval.bytes", "7", "index_interval_bytes", 7),
        ("segment.index.bytes", "400", "index_bytes_max", 400),
        ("retention.ms", "-1", "retention_ms", -1),
        ("retention.bytes", "9", "retention_bytes", 9),
        ("min.cleanable.dirty.ratio", "0.25", "min_cleanable_dirty_ratio", 0.25),
        ("min.compaction.lag.ms", "3", "min_compaction_lag_ms", 3),
        ("max.compaction.lag.ms", "4", "max_compaction_lag_ms", 4),
        ("delete.retention.ms", "6", "delete_retention_ms", 6),
        ("file.delete.delay.ms", "8", "file_delete_delay_ms", 8),
        ("max.message.bytes", "100", "max_message_bytes", 100),
        ("message.timestamp.type", "LogAppendTime", "timestamp_type_append", True),
        ("message.timestamp.before.max.ms", "11", "timestamp_before_max_ms", 11),
        ("message.timestamp.after.max.ms", "12", "timestamp_after_max_ms", 12),
        ("compression.type", "zstd", "compression_type", "zstd"),
        ("flush.messages", "13", "flush_messages", 13),
        ("flush.ms", "14", "flush_ms", 14),
    ],
)
def test_each_setting_of_a_topic_reaches_its_limit_and_no_other(
    setting: str, value: str, field: str, wanted: object
) -> None:
    told, plain = limits({setting: value}), LogLimits()
    changed = {each.name for each in fields(LogLimits) if getattr(told, each.name) != getattr(plain, each.name)}
    assert changed == {field}
    assert getattr(told, field) == wanted


@pytest.mark.parametrize(
    ("policy", "delete", "compact"),
    [("delete", True, False), ("compact", False, True), ("compact,delete", True, True), ("", False, False)],
)
def test_the_cleanup_policy(policy: str, delete: bool, compact: bool) -> None:
    told = limits({"cleanup.policy": policy})
    assert (told.cleanup_delete, told.cleanup_compact) == (delete, compact)


def test_what_only_the_node_is_told() -> None:
    told = limits(node={"producer.id.expiration.ms": "77", "log.cleaner.dedupe.buffer.size": "5000000"})
    assert (told.producer_id_expiration_ms, told.dedupe_buffer_bytes) == (77, 5000000)
