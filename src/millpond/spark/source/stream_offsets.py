"""The offsets a streaming query can read next, and losses, while partitions appear and disappear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from millpond.base.ids import NO_TOPIC_ID, TopicPartition
from millpond.client.errors import ClientError
from millpond.remote import offsets as cluster_offsets
from millpond.remote.offsets import Isolation
from millpond.spark.source.data_loss import confirm, may_be_gone, report_loss, was_recreated
from millpond.spark.source.offset_spec import Offsets
from millpond.spark.source.ranges import Range
from millpond.spark.source.subscription import Subscribed, Subscription, look

if TYPE_CHECKING:
    from millpond.remote.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Span:
    """Where each partition would be read from, and how far it can be."""

    starts: Offsets
    ends: Offsets


class StreamOffsets:
    """Remembers topic ids, to recognize recreated topics."""

    def __init__(self, subscription: Subscription, isolation: Isolation, *, fails: bool) -> None:
        self._subscription = subscription
        self._isolation: Isolation = isolation
        self._fails = fails
        self._ids: dict[str, UUID] = {}
        self._recreated: Offsets = {}
        """The query's position in partitions that restart at their first record."""

    def available(self, cluster: Cluster, position: Offsets) -> Span:
        """From the query's position to the end of the log. New partitions start at their first record."""
        self._recreated = {
            partition: offset for partition, offset in self._recreated.items() if position.get(partition) == offset
        }
        subscribed, ends = self._confirmed(cluster, position)
        self._note_recreated(subscribed, position)
        self._note_removed(cluster, ends, position)
        self._note_beyond(ends, position)
        fresh = [partition for partition in ends if partition not in position or partition in self._recreated]
        starts = {partition: position[partition] for partition in ends if partition in position}
        return Span(starts | cluster_offsets.earliest(cluster, fresh), ends)

    def latest(self, cluster: Cluster, span: Span) -> Offsets:
        """The ends of the same partitions again; the previous ones if a topic has just disappeared."""
        try:
            ends = cluster_offsets.latest(cluster, span.ends, self._isolation)
            # A batch must not end before its start: an open transaction may lower the LSO.
            return {partition: max(end, span.starts[partition]) for partition, end in ends.items()}
        except ClientError as fault:
            if not may_be_gone(fault):
                raise
            return span.ends

    def begins_again(self, partition: TopicPartition) -> bool:
        return partition in self._recreated

    def ranges(self, cluster: Cluster, position: Offsets, ends: Offsets) -> list[Range]:
        """The ranges of a batch. Offsets no longer in the log are lost."""
        subscribed = confirm(lambda: look(cluster, self._subscription), lambda seen: ends.keys() <= seen.partitions)
        earliest = cluster_offsets.earliest(
            cluster, [partition for partition in ends if partition in subscribed.partitions]
        )
        planned = []
        for partition, end in ends.items():
            start = position.get(partition)
            if partition not in earliest:
                if start is None or start < end:
                    self._lost(f"{partition} is gone, its offsets {start or 0} to {end} were to be read")
                continue
            topic_id = subscribed.ids[partition.topic]
            if was_recreated(self._ids.get(partition.topic, NO_TOPIC_ID), topic_id):
                if start is None or start < end:
                    self._lost(
                        f"{partition} was recreated, offsets {start or 0} to {end} of the old one were to be read"
                    )
                continue
            first = self._first(partition, start, end, earliest[partition])
            if first < end:
                planned.append(Range(partition, first, end, topic_id))
        return planned

    def _first(self, partition: TopicPartition, start: int | None, end: int, earliest: int) -> int:
        if start is None:
            if earliest:
                self._lost(f"{partition} is new to the query, and its log begins with offset {earliest}, not 0")
            return earliest
        if self._recreated.get(partition) == start:
            return earliest
        if start > end:
            self._lost(f"{partition} was read up to offset {start}, and now ends at {end}: it was recreated")
            return earliest
        if start < earliest and start < end:
            self._lost(
                f"{partition}: offsets {start} to {end} were to be read, the log begins with {earliest}; "
                "retention or a deletion took the others"
            )
            return earliest
        return start

    def _confirmed(self, cluster: Cluster, position: Offsets) -> tuple[Subscribed, Offsets]:
        """The partitions and their ends."""

        def look_for_ends() -> tuple[Subscribed, Offsets]:
            subscribed = look(cluster, self._subscription)
            ends = cluster_offsets.latest(cluster, subscribed.partitions, self._isolation)
            return subscribed, ends | self._held_back(cluster, position, ends)

        def is_whole(seen: tuple[Subscribed, Offsets]) -> bool:
            ends = seen[1]
            return all(
                ends.get(partition, -1) >= offset or partition in self._recreated
                for partition, offset in position.items()
            )

        return confirm(look_for_ends, is_whole)

    def _held_back(self, cluster: Cluster, position: Offsets, ends: Offsets) -> Offsets:
        """Partitions where an open transaction hides records read before: nothing is lost."""
        if self._isolation == "read_uncommitted":
            return {}
        behind = [partition for partition, end in ends.items() if end < position.get(partition, 0)]
        log_ends = cluster_offsets.latest(cluster, behind)
        return {partition: position[partition] for partition in behind if position[partition] <= log_ends[partition]}

    def _note_recreated(self, subscribed: Subscribed, position: Offsets) -> None:
        for topic, topic_id in subscribed.ids.items():
            before = self._ids.get(topic, NO_TOPIC_ID)
            self._ids[topic] = topic_id
            if not was_recreated(before, topic_id):
                continue
            recreated = {
                partition: offset for partition, offset in position.items() if partition.topic == topic and offset > 0
            }
            if recreated:
                read = ", ".join(
                    f"{partition.partition}: {offset}" for partition, offset in sorted(recreated.items())
                )
                self._lost(f"topic {topic} was recreated; the old one was read up to {read} (partition: offset)")
                self._recreated |= recreated

    def _note_removed(self, cluster: Cluster, ends: Offsets, position: Offsets) -> None:
        removed = sorted(position.keys() - ends.keys())
        if not removed:
            return
        topics = cluster.topics({partition.topic for partition in removed})
        is_there = {
            each: each.topic in topics and each.partition in topics[each.topic].partitions for each in removed
        }
        gone, unread = (
            ", ".join(f"{each} at offset {position[each]}" for each in removed if is_there[each] is is_present)
            for is_present in (False, True)
        )
        if gone:
            self._lost(f"partitions are gone: {gone}")
        if unread:
            self._lost(
                f"the query no longer reads {unread}, although it exists: the subscription was changed, "
                "or the checkpoint is another query's"
            )

    def _note_beyond(self, ends: Offsets, position: Offsets) -> None:
        for partition, end in ends.items():
            start = position.get(partition, 0)
            if start > end and partition not in self._recreated:
                self._lost(f"{partition} was read up to offset {start}, and now ends at {end}: it was recreated")
                self._recreated[partition] = start

    def _lost(self, what: str) -> None:
        report_loss(what, fails=self._fails)
