"""Every topic setting that a log uses reaches it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from millpond.broker.storage.log_limits import log_limits
from millpond.config.effective import NodeLayers
from millpond.config.node import node_settings
from millpond.log.limits import FOREVER, LogLimits

CHANGES: dict[str, tuple[str, object]] = {
    "segment.bytes": ("20000", {"segment_bytes": 20000}),
    "segment.ms": ("11", {"segment_ms": 11}),
    "index.interval.bytes": ("12", {"index_interval_bytes": 12}),
    "segment.index.bytes": ("13000", {"index_bytes_max": 13000}),
    "retention.ms": ("-1", {"retention_ms": -1}),
    "retention.bytes": ("15", {"retention_bytes": 15}),
    "min.cleanable.dirty.ratio": ("0.25", {"min_cleanable_dirty_ratio": 0.25}),
    "min.compaction.lag.ms": ("16", {"min_compaction_lag_ms": 16}),
    "max.compaction.lag.ms": ("17", {"max_compaction_lag_ms": 17}),
    "delete.retention.ms": ("18", {"delete_retention_ms": 18}),
    "file.delete.delay.ms": ("19", {"file_delete_delay_ms": 19}),
    "max.message.bytes": ("21", {"max_message_bytes": 21}),
    "message.timestamp.type": ("LogAppendTime", {"timestamp_type_append": True}),
    "message.timestamp.before.max.ms": ("22", {"timestamp_before_max_ms": 22}),
    "message.timestamp.after.max.ms": ("23", {"timestamp_after_max_ms": 23}),
    "compression.type": ("lz4", {"compression_type": "lz4"}),
    "flush.messages": ("24", {"flush_messages": 24}),
    "flush.ms": ("25", {"flush_ms": 25}),
}

POLICIES = {
    "delete": (True, False),
    "compact": (False, True),
    "compact,delete": (True, True),
    "": (False, False),
}


def limits(of_topic: dict[str, str] | None = None, of_node: dict[str, str] | None = None) -> LogLimits:
    layers = NodeLayers(node_settings(of_node or {}))
    return log_limits(layers.topic_settings(of_topic or {}), layers.settings())


def test_without_settings_a_log_goes_by_its_own_defaults() -> None:
    assert limits() == LogLimits()


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_of_the_topic_changes_what_the_log_is_told_and_nothing_else(name: str) -> None:
    text, expected = CHANGES[name]
    assert limits({name: text}) == replace(LogLimits(), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_says_whether_to_delete_and_whether_to_compact(policy: str) -> None:
    told = limits({"cleanup.policy": policy})
    assert (told.cleanup_delete, told.cleanup_compact) == POLICIES[policy]


def test_what_belongs_to_the_node_comes_from_the_node() -> None:
    of_node = {
        "producer.id.expiration.ms": "31",
        "log.cleaner.dedupe.buffer.size": str(32 << 20),
        "max.producers.per.partition": "33",
    }
    expected = replace(LogLimits(), producer_id_expiration_ms=31, dedupe_buffer_bytes=32 << 20, producers_max=33)
    assert limits(of_node=of_node) == expected


def test_a_topic_inherits_from_its_node() -> None:
    assert limits(of_node={"log.retention.ms": "41"}).retention_ms == 41
    assert limits({"retention.ms": "42"}, {"log.retention.ms": "41"}).retention_ms == 42


def test_no_limit_is_left_out() -> None:
    """A new limit of the log must be listed here with its source."""
    tested = {name for _, change in CHANGES.values() for name in change}  # type: ignore[attr-defined]
    tested |= {
        "cleanup_delete",
        "cleanup_compact",
        "producer_id_expiration_ms",
        "dedupe_buffer_bytes",
        "producers_max",
    }
    assert tested == {field.name for field in fields(LogLimits)}
    assert LogLimits().flush_ms == FOREVER
