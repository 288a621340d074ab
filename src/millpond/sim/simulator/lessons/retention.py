"""Lessons about what is kept: retention and compaction."""

from __future__ import annotations

from typing import Final

from millpond.sim.simulator.actions import AddConsumer, CrashConsumer, CreateTopic, Produce, SetConfig
from millpond.sim.simulator.lessons.lesson import Lesson

LESSONS: Final = (
    Lesson(
        name="retention",
        title="Retention deletes from the front, read or not",
        about="Records are kept for three seconds here. Segments roll every second, and old ones are deleted whole.",
        question="Does it matter whether they have been read?",
        answer=(
            "No. What is older than the retention goes, read or unread, whole segments at a time; what is younger "
            "stays, read or unread. The offsets go on: records keep their numbers."
        ),
        claims=(
            "Records are kept by time or size, whether they were read or not.",
            "Retention deletes whole segments from the front of the log; offsets are never used again.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            SetConfig(setting="segment.ms", value="1000"),
            SetConfig(setting="retention.ms", value="3000"),
            200,
            AddConsumer("reader-1", "readers"),
            1000,
            Produce(count=20, every_ms=100),
            2200,
        ),
        after=(4000, Produce(count=3), 600),
    ),
    Lesson(
        name="lag-and-retention",
        title="Lag against retention: data that was never read",
        about=(
            "Records are kept for three seconds. The consumer is killed, records keep coming, and no one looks at "
            "the lag."
        ),
        question="The consumer comes back after the retention. What does it find?",
        answer=(
            "The offset that it wants is not there any more: it begins at the first record that is left, and what "
            "lies between was never read by anybody. An alarm on lag has to come long before."
        ),
        claims=(
            "A group that is behind by more than the retention loses records that it never read.",
            "Lag that grows is the first sign of trouble: alert on it long before it reaches the retention.",
        ),
        before=(
            CreateTopic(partitions=1),
            300,
            SetConfig(setting="segment.ms", value="1000"),
            SetConfig(setting="retention.ms", value="3000"),
            200,
            AddConsumer("reader-1", "readers"),
            1000,
            Produce(count=3, value="read "),
            600,
            CrashConsumer("reader-1"),
            Produce(count=40, value="unread ", every_ms=100),
            7000,
        ),
        after=(AddConsumer("reader-1", "readers"), 4000),
    ),
    Lesson(
        name="compaction",
        title="Compaction keeps the latest value of each key",
        about="A topic of prices with cleanup.policy=compact: three keys, each written again and again.",
        question="What does a new reader find at the start of the log, later?",
        answer=(
            "For every key at least its latest value; older ones are gone where the cleaner has passed, and the "
            "offsets have holes. From the log alone a reader can build the whole present state."
        ),
        claims=(
            "Compaction keeps at least the latest record of each key and drops older ones.",
            "A compacted topic is bounded by its keys, not by time: a reader builds the present state from it.",
        ),
        before=(
            CreateTopic("prices", partitions=1),
            300,
            SetConfig("prices", "cleanup.policy", "compact"),
            SetConfig("prices", "segment.ms", "500"),
            SetConfig("prices", "min.cleanable.dirty.ratio", "0.01"),
            300,
            Produce("prices", count=18, keys=("tea", "milk", "salt"), every_ms=100),
            2500,
        ),
        after=(
            Produce("prices", count=3, keys=("tea", "milk", "salt"), value="last "),
            6000,
            AddConsumer("cache-1", "cache", "prices"),
            1500,
        ),
    ),
)
