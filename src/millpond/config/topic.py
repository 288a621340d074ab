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
    "What happens to old records: `delete` drops whole segments past the retention limits, `compact` keeps the "
    "latest record of every key, both together do both, and an empty list keeps everything.",
    check=each_of("compact", "delete"),
    inherits="log.cleanup.policy",
    live=True,
)
COMPRESSION_TYPE = Setting(
    "compression.type",
    "producer",
    "The codec in which batches are stored. Batches are always stored as the producer compressed them; values "
    "other than `producer` are stored for tools but have no effect.",
    check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    inherits="compression.type",
    live=True,
)
DELETE_RETENTION_MS = Setting(
    "delete.retention.ms",
    DAY_MS,
    "How long compaction keeps tombstones, so that a consumer that reads from the start still sees the deletion.",
    check=at_least(0),
    inherits="log.cleaner.delete.retention.ms",
    live=True,
)
FILE_DELETE_DELAY_MS = Setting(
    "file.delete.delay.ms",
    60_000,
    "How long the files of a deleted segment stay on disk.",
    check=at_least(0),
    inherits="log.segment.delete.delay.ms",
    live=True,
)
FOLLOWER_THROTTLED_REPLICAS: Setting[tuple[str, ...]] = Setting(
    "follower.replication.throttled.replicas",
    (),
    "Out-of-sync replicas that `follower.replication.throttled.rate` limits: PARTITION:NODE separated by commas, "
    "or * for all. Set by tools that move partitions.",
    check=_replica_list,
    live=True,
)
FLUSH_ACK = Setting(
    "flush.ack",
    "auto",
    "Whether a write with acks=all is forced to disk before it is acknowledged: `auto` does so while only one "
    "replica is in sync, `always` does so on every replica, `never` leaves it to the operating system.",
    check=one_of("auto", "always", "never"),
    inherits="flush.ack",
    live=True,
)
FLUSH_MESSAGES = Setting(
    "flush.messages",
    FOREVER,
    "Force the log to disk after this many records.",
    check=at_least(1),
    inherits="log.flush.interval.messages",
    live=True,
)
FLUSH_MS = Setting(
    "flush.ms",
    FOREVER,
    "Force the log to disk when its oldest unforced record is this old.",
    check=at_least(0),
    inherits="log.flush.interval.ms",
    live=True,
)
INDEX_INTERVAL_BYTES = Setting(
    "index.interval.bytes",
    4096,
    "The number of bytes of log between two entries of the offset index.",
    check=at_least(0),
    inherits="log.index.interval.bytes",
    live=True,
    bits=32,
)
MAX_COMPACTION_LAG_MS = Setting(
    "max.compaction.lag.ms",
    FOREVER,
    "The longest that a record may wait for compaction, even if there is little to remove.",
    check=at_least(1),
    inherits="log.cleaner.max.compaction.lag.ms",
    live=True,
)
MAX_MESSAGE_BYTES = Setting(
    "max.message.bytes",
    1_048_588,
    "The maximum size of a record batch, as compressed by the producer.",
    check=at_least(0),
    inherits="message.max.bytes",
    live=True,
    bits=32,
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = Setting(
    "message.timestamp.after.max.ms",
    3_600_000,
    "How far a record's timestamp may be ahead of the broker's clock. Ignored with LogAppendTime.",
    check=at_least(0),
    inherits="log.message.timestamp.after.max.ms",
    live=True,
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = Setting(
    "message.timestamp.before.max.ms",
    FOREVER,
    "How far a record's timestamp may be behind the broker's clock. Ignored with LogAppendTime.",
    check=at_least(0),
    inherits="log.message.timestamp.before.max.ms",
    live=True,
)
MESSAGE_TIMESTAMP_TYPE = Setting(
    "message.timestamp.type",
    "CreateTime",
    "Who sets the timestamps of records: the producer (`CreateTime`) or the broker (`LogAppendTime`).",
    check=one_of("CreateTime", "LogAppendTime"),
    inherits="log.message.timestamp.type",
    live=True,
)
MIN_CLEANABLE_DIRTY_RATIO = Setting(
    "min.cleanable.dirty.ratio",
    0.5,
    "Compact a log once this share of it has been written since the last compaction.",
    check=between(0, 1),
    inherits="log.cleaner.min.cleanable.ratio",
    live=True,
)
MIN_COMPACTION_LAG_MS = Setting(
    "min.compaction.lag.ms",
    0,
    "How long a record stays uncompacted after it was written.",
    check=at_least(0),
    inherits="log.cleaner.min.compaction.lag.ms",
    live=True,
)
LEADER_THROTTLED_REPLICAS: Setting[tuple[str, ...]] = Setting(
    "leader.replication.throttled.replicas",
    (),
    "Replicas for which, while they lead, `leader.replication.throttled.rate` limits what they send to "
    "out-of-sync followers: PARTITION:NODE separated by commas, or * for all. Set by tools that move partitions.",
    check=_replica_list,
    live=True,
)
MIN_INSYNC_REPLICAS = Setting(
    "min.insync.replicas",
    1,
    "How many replicas must have a write before acks=all acknowledges it. With fewer replicas in sync, the write "
    "is refused.",
    check=at_least(1),
    inherits="min.insync.replicas",
    live=True,
    bits=32,
)
PREALLOCATE = Setting(
    "preallocate",
    False,
    "Whether to reserve disk space for new segments. Stored for tools but without effect.",
    inherits="log.preallocate",
    live=True,
)
RETENTION_BYTES = Setting(
    "retention.bytes",
    -1,
    "Delete the oldest segments of a partition that is larger than this; -1 sets no limit.",
    check=at_least(-1),
    inherits="log.retention.bytes",
    live=True,
)
RETENTION_MS = Setting(
    "retention.ms",
    7 * DAY_MS,
    "Delete segments whose newest record is older than this; -1 keeps them forever.",
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
    "The maximum random time subtracted from `segment.ms`. Stored for tools but without effect, because "
    "partitions are checked one after the other.",
    check=at_least(0),
    inherits="log.roll.jitter.ms",
    live=True,
)
SEGMENT_MS = Setting(
    "segment.ms",
    7 * DAY_MS,
    "Roll to a new segment at this age even if it is not full, so that retention and compaction can process the "
    "old one.",
    check=at_least(1),
    inherits="log.roll.ms",
    live=True,
)
UNCLEAN_LEADER_ELECTION_ENABLE = Setting(
    "unclean.leader.election.enable",
    False,
    "Whether an out-of-sync replica may become leader when no other is available, at the cost of lost records. "
    "Without effect on partitions with one replica.",
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
