"""Topic settings, with Kafka's names and defaults.

A topic's own value wins; otherwise the setting named by `inherits` applies (see `effective`). All of them can change
while the topic is in use.
"""

from __future__ import annotations

import re
from typing import Final

from millpond.base.settings import Registry, Setting, Value, at_least, between, each_of, one_of

FOREVER: Final = (1 << 63) - 1
"""The largest number of milliseconds, messages or bytes: in practice "never"."""

DAY_MS: Final = 24 * 60 * 60 * 1000

ALL_REPLICAS: Final = "*"
_REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")


def _replica_list(value: Value) -> str | None:
    is_fine = isinstance(value, tuple) and (
        value in ((ALL_REPLICAS,), ("none",)) or all(_REPLICA.fullmatch(each) for each in value)
    )
    return None if is_fine else "must be * or none, or a list of replicas as PARTITION:NODE, like 0:1,0:2,1:1"


CLEANUP_POLICY = Setting(
    "cleanup.policy",
    ("delete",),
    "What happens to old records: 'delete' drops whole segments past the retention limits, 'compact' keeps the "
    "latest record of every key, both together do both, and an empty list keeps everything.",
    check=each_of("compact", "delete"),
    inherits="log.cleanup.policy",
    live=True,
)
COMPRESSION_TYPE = Setting(
    "compression.type",
    "producer",
    "The codec in which batches are stored; 'producer' keeps what the producer chose, and is what this broker always "
    "does: other values are remembered for tools and have no effect.",
    check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    inherits="compression.type",
    live=True,
)
DELETE_RETENTION_MS = Setting(
    "delete.retention.ms",
    DAY_MS,
    "How long compaction keeps a tombstone, so that a reader who started at the beginning still sees the deletion.",
    check=at_least(0),
    inherits="log.cleaner.delete.retention.ms",
    live=True,
)
FILE_DELETE_DELAY_MS = Setting(
    "file.delete.delay.ms",
    60_000,
    "How long the files of a dropped segment stay on disk before they are removed.",
    check=at_least(0),
    inherits="log.segment.delete.delay.ms",
    live=True,
)
FOLLOWER_THROTTLED_REPLICAS: Setting[tuple[str, ...]] = Setting(
    "follower.replication.throttled.replicas",
    (),
    "Replicas that take no more than follower.replication.throttled.rate while they are not in sync: PARTITION:NODE "
    "with commas between, or * for all. Set by tools that move partitions.",
    check=_replica_list,
    live=True,
)
FLUSH_ACK = Setting(
    "flush.ack",
    "auto",
    "Whether a write with acks=all is forced to disk before it is acknowledged: 'auto' does so while only one "
    "replica is in sync, 'always' does so on every replica, 'never' leaves it to the operating system.",
    check=one_of("auto", "always", "never"),
    inherits="flush.ack",
    live=True,
)
FLUSH_MESSAGES = Setting(
    "flush.messages",
    FOREVER,
    "Force the log to disk after this many records, whether or not anyone waits for it.",
    check=at_least(1),
    inherits="log.flush.interval.messages",
    live=True,
)
FLUSH_MS = Setting(
    "flush.ms",
    FOREVER,
    "Force the log to disk when its oldest unforced record is this old, whether or not anyone waits for it.",
    check=at_least(0),
    inherits="log.flush.interval.ms",
    live=True,
)
INDEX_INTERVAL_BYTES = Setting(
    "index.interval.bytes",
    4096,
    "How many bytes of log lie between two entries of the offset index.",
    check=at_least(0),
    inherits="log.index.interval.bytes",
    live=True,
    bits=32,
)
MAX_COMPACTION_LAG_MS = Setting(
    "max.compaction.lag.ms",
    FOREVER,
    "The longest that a record may wait before its log is compacted, however little there is to gain.",
    check=at_least(1),
    inherits="log.cleaner.max.compaction.lag.ms",
    live=True,
)
MAX_MESSAGE_BYTES = Setting(
    "max.message.bytes",
    1_048_588,
    "The largest record batch, as the producer compressed it, that the topic takes.",
    check=at_least(0),
    inherits="message.max.bytes",
    live=True,
    bits=32,
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = Setting(
    "message.timestamp.after.max.ms",
    3_600_000,
    "How far a record's own timestamp may lie in the broker's future; ignored with LogAppendTime.",
    check=at_least(0),
    inherits="log.message.timestamp.after.max.ms",
    live=True,
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = Setting(
    "message.timestamp.before.max.ms",
    FOREVER,
    "How far a record's own timestamp may lie in the broker's past; ignored with LogAppendTime.",
    check=at_least(0),
    inherits="log.message.timestamp.before.max.ms",
    live=True,
)
MESSAGE_TIMESTAMP_TYPE = Setting(
    "message.timestamp.type",
    "CreateTime",
    "Whose clock stamps a record: 'CreateTime' the producer's, 'LogAppendTime' the broker's.",
    check=one_of("CreateTime", "LogAppendTime"),
    inherits="log.message.timestamp.type",
    live=True,
)
MIN_CLEANABLE_DIRTY_RATIO = Setting(
    "min.cleanable.dirty.ratio",
    0.5,
    "Compact a log once this share of it has been written since the last time.",
    check=between(0, 1),
    inherits="log.cleaner.min.cleanable.ratio",
    live=True,
)
MIN_COMPACTION_LAG_MS = Setting(
    "min.compaction.lag.ms",
    0,
    "How long a record is safe from compaction after it was written.",
    check=at_least(0),
    inherits="log.cleaner.min.compaction.lag.ms",
    live=True,
)
LEADER_THROTTLED_REPLICAS: Setting[tuple[str, ...]] = Setting(
    "leader.replication.throttled.replicas",
    (),
    "Replicas that give others, who are not in sync, no more than leader.replication.throttled.rate while they lead: "
    "PARTITION:NODE with commas between, or * for all. Set by tools that move partitions.",
    check=_replica_list,
    live=True,
)
MIN_INSYNC_REPLICAS = Setting(
    "min.insync.replicas",
    1,
    "How many replicas must have a write before acks=all is acknowledged; with fewer in sync the write is refused.",
    check=at_least(1),
    inherits="min.insync.replicas",
    live=True,
    bits=32,
)
PREALLOCATE = Setting(
    "preallocate",
    False,
    "Whether to reserve the space of a segment when it is created; remembered for tools, has no effect.",
    inherits="log.preallocate",
    live=True,
)
RETENTION_BYTES = Setting(
    "retention.bytes",
    -1,
    "Drop the oldest segments of a partition once it is larger than this; -1 sets no limit.",
    check=at_least(-1),
    inherits="log.retention.bytes",
    live=True,
)
RETENTION_MS = Setting(
    "retention.ms",
    7 * DAY_MS,
    "Drop segments whose newest record is older than this; -1 keeps them for ever.",
    check=at_least(-1),
    inherits="log.retention.ms",
    live=True,
)
SEGMENT_BYTES = Setting(
    "segment.bytes",
    1 << 30,
    "Roll to a new segment at this size.",
    check=at_least(1 << 14),
    inherits="log.segment.bytes",
    live=True,
    bits=32,
)
SEGMENT_INDEX_BYTES = Setting(
    "segment.index.bytes",
    10 * 1024 * 1024,
    "Roll to a new segment when its offset index reaches this size.",
    check=at_least(4),
    inherits="log.index.size.max.bytes",
    live=True,
    bits=32,
)
SEGMENT_JITTER_MS = Setting(
    "segment.jitter.ms",
    0,
    "Roll by time up to this much earlier, at random; remembered for tools, has no effect: partitions are looked at "
    "one after the other, not all at the same moment.",
    check=at_least(0),
    inherits="log.roll.jitter.ms",
    live=True,
)
SEGMENT_MS = Setting(
    "segment.ms",
    7 * DAY_MS,
    "Roll to a new segment at this age even if the old one is not full, so that retention and compaction reach it.",
    check=at_least(1),
    inherits="log.roll.ms",
    live=True,
)
UNCLEAN_LEADER_ELECTION_ENABLE = Setting(
    "unclean.leader.election.enable",
    False,
    "Whether a replica that is not in sync may become leader when no other is left, at the price of lost records; "
    "has no effect while partitions have one replica.",
    inherits="unclean.leader.election.enable",
    live=True,
)

TOPIC = Registry(
    "topic",
    (
        CLEANUP_POLICY,
        COMPRESSION_TYPE,
        DELETE_RETENTION_MS,
        FILE_DELETE_DELAY_MS,
        FLUSH_ACK,
        FLUSH_MESSAGES,
        FLUSH_MS,
        FOLLOWER_THROTTLED_REPLICAS,
        INDEX_INTERVAL_BYTES,
        LEADER_THROTTLED_REPLICAS,
        MAX_COMPACTION_LAG_MS,
        MAX_MESSAGE_BYTES,
        MESSAGE_TIMESTAMP_AFTER_MAX_MS,
        MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
        MESSAGE_TIMESTAMP_TYPE,
        MIN_CLEANABLE_DIRTY_RATIO,
        MIN_COMPACTION_LAG_MS,
        MIN_INSYNC_REPLICAS,
        PREALLOCATE,
        RETENTION_BYTES,
        RETENTION_MS,
        SEGMENT_BYTES,
        SEGMENT_INDEX_BYTES,
        SEGMENT_JITTER_MS,
        SEGMENT_MS,
        UNCLEAN_LEADER_ELECTION_ENABLE,
    ),
)
"""Sorted by name, which is also the order in tools and docs."""
