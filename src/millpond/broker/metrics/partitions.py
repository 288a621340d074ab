"""Metrics of this node's partitions and their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.names import DEAD_LETTERS_ENDING
from millpond.broker.loop.steps import Steps, in_slices
from millpond.broker.metrics.exposition import Exposition, labels
from millpond.log.limits import FOREVER

if TYPE_CHECKING:
    from millpond.broker.context import DataContext
    from millpond.broker.replication.partitions import Partition

PARTITIONS_AT_ONCE: Final = 50
"""Partitions per step; takes the loop about half a millisecond."""

TOPICS_AT_ONCE: Final = 20


def collect_partitions(page: Exposition, data: DataContext, *, is_named: bool = True) -> Steps[None]:
    """Every partition that has a replica on this node; only totals if `is_named` is false."""
    written_bytes = page.counter(
        "millpond_partition_written_bytes_total", "Bytes of batches written here as the leader."
    )
    written_records = page.counter("millpond_partition_written_records_total", "Records written here as the leader.")
    read_bytes = page.counter("millpond_partition_read_bytes_total", "Bytes of batches sent to consumers from here.")
    copied_bytes = page.counter("millpond_partition_copied_bytes_total", "Bytes copied from another leader.")
    start = page.gauge("millpond_partition_log_start_offset", "The first record that is there.")
    end = page.gauge("millpond_partition_log_end_offset", "One past the last record.")
    high_watermark = page.gauge("millpond_partition_high_watermark", "Below it everything is committed.")
    size = page.gauge("millpond_partition_size_bytes", "Bytes of the log on this node's disk.")
    leads = page.gauge("millpond_partition_leader", "1 where this node leads it, else 0.")
    replicas = page.gauge("millpond_partition_replicas", "How many replicas it has, as its leader tells.")
    in_sync = page.gauge("millpond_partition_in_sync_replicas", "How many are in sync (ISR), as its leader tells.")
    behind = page.gauge("millpond_partition_under_replicated", "1 where some are not, as its leader tells, else 0.")
    failed = page.gauge("millpond_partition_offline", "1 where this node's log of it has failed, else 0.")
    led_total = page.gauge("millpond_partitions_led", "Partitions that this node leads.")
    behind_total = page.gauge("millpond_partitions_under_replicated", "Those of them with replicas not in sync.")
    unwritable_total = page.gauge(
        "millpond_partitions_under_min_isr", "Those that refuse acks=all: fewer in sync than min.insync.replicas."
    )
    led_count = behind_count = unwritable_count = 0
    for some in in_slices(list(data.partitions), PARTITIONS_AT_ONCE):
        for partition in some:
            topic, index = partition.name
            named = f'{{topic="{topic}",partition="{index}"}}'
            log = partition.log
            if is_named:
                start.add(log.start_offset, named)
                end.add(log.end_offset, named)
                high_watermark.add(partition.committed_offset, named)
                size.add(log.size_bytes, named)
                written_bytes.add(partition.written_bytes, named)
                written_records.add(partition.written_records, named)
                read_bytes.add(partition.read_bytes, named)
                copied_bytes.add(partition.copied_bytes, named)
                leads.add(int(partition.is_leader), named)
                failed.add(int(log.failed is not None), named)
            if not partition.is_leader or partition.view is None:
                continue
            is_behind = len(partition.view.isr) < len(partition.view.replicas)
            if is_named:
                replicas.add(len(partition.view.replicas), named)
                in_sync.add(len(partition.view.isr), named)
                behind.add(int(is_behind), named)
            led_count += 1
            behind_count += is_behind
            unwritable_count += partition.leader_role is not None and not partition.leader_role.is_writable
        page.seal()
        yield None
    led_total.add(led_count)
    behind_total.add(behind_count)
    unwritable_total.add(unwritable_count)


def collect_topics(page: Exposition, data: DataContext) -> Steps[None]:
    """Metrics that are kept per topic, not per partition."""
    acknowledged = page.histogram(
        "millpond_produce_acknowledge_seconds",
        "From the arrival of a batch until it is acknowledged to its producer, by topic.",
    )
    kept_seconds = page.gauge("millpond_topic_retention_seconds", "How long records are kept, where that is limited.")
    kept_bytes = page.gauge("millpond_topic_retention_bytes", "How much of each partition is kept, where limited.")
    letters = page.gauge(
        "millpond_dead_letters", f"Records in the topics for dead letters (*{DEAD_LETTERS_ENDING}) that are led here."
    )
    by_topic: dict[str, list[Partition]] = {}
    for some in in_slices(list(data.partitions), PARTITIONS_AT_ONCE * 10):
        for partition in some:
            by_topic.setdefault(partition.name.topic, []).append(partition)
        yield None
    for topics in in_slices(list(by_topic), TOPICS_AT_ONCE):
        for topic in topics:
            partitions = by_topic[topic]
            histogram = partitions[0].acknowledged
            if histogram.count:
                acknowledged.add_histogram(histogram, topic=topic)
            named = labels(topic=topic)
            limits = partitions[0].log.limits
            if limits.cleanup_delete and 0 <= limits.retention_ms < FOREVER:
                kept_seconds.add(limits.retention_ms / 1000, named)
            if limits.cleanup_delete and 0 <= limits.retention_bytes < FOREVER:
                kept_bytes.add(limits.retention_bytes, named)
            if topic.endswith(DEAD_LETTERS_ENDING):
                led = [each for each in partitions if each.is_leader]
                letters.add(sum(each.committed_offset - each.log.start_offset for each in led), named)
        page.seal()
        yield None
