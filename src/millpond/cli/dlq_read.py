"""Dead letters as the `dlq` commands see them: what stands in a topic between two places, and which are meant."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from millpond.cli.connect import ANSWER_SECONDS, Cluster, topic_of, topics_of
from millpond.cli.errors import Failed, failed
from millpond.cli.offsets import EARLIEST, LATEST, Bounds, Partition, offsets_at
from millpond.client.dead_letters import DeadLetter, read_dead_letter
from millpond.client.errors import DecodeFailed
from millpond.client.message import Message, from_raw

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka import Message as RawMessage
    from confluent_kafka.admin import AdminClient

BATCH_RECORDS: Final = 1000

Place = tuple[int, int]
"""Partition and offset within the dead-letter topic."""


class Letter:
    """One record of a dead-letter topic, and what its headers say if a worker put it there."""

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def place(self) -> Place:
        return self.message.partition, self.message.offset

    @cached_property
    def told(self) -> DeadLetter | None:
        try:
            return read_dead_letter(self.message)
        except DecodeFailed:
            return None

    @property
    def error_type(self) -> str:
        return self.told.error_type if self.told else ""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant. What is empty or None does not restrict; the rest must all hold."""

    errors: frozenset[str] = frozenset()
    """Types of errors, whole or without their module."""
    keys: frozenset[bytes] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    """When the letter was written; the end does not belong to it."""
    places: frozenset[Place] = frozenset()

    def takes(self, letter: Letter) -> bool:
        message = letter.message
        return (
            (not self.places or letter.place in self.places)
            and (self.since_ms is None or message.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or message.timestamp_ms < self.until_ms)
            and (not self.keys or message.key in self.keys)
            and (not self.errors or self._names(letter.error_type))
        )

    @property
    def is_open(self) -> bool:
        """Whether every letter is meant."""
        return self == Filter()

    def _names(self, error_type: str) -> bool:
        return error_type in self.errors or error_type.rpartition(".")[2] in self.errors


def letter_bounds(admin: AdminClient, topic: str) -> dict[Partition, Bounds]:
    """Where each partition begins, and where what is committed ends."""
    partitions = [(topic, index) for index in sorted(topic_of(admin, topic).partitions)]
    return committed_bounds(admin, partitions)


def committed_bounds(admin: AdminClient, partitions: list[Partition]) -> dict[Partition, Bounds]:
    starts = offsets_at(admin, partitions, EARLIEST)
    ends = offsets_at(admin, partitions, LATEST, committed_only=True)
    return {each: Bounds(starts[each], ends[each]) for each in partitions}


def narrowed(admin: AdminClient, bounds: Mapping[Partition, Bounds], wanted: Filter) -> dict[Partition, Bounds]:
    """The part of each partition outside of which the filter takes nothing."""
    found = dict(bounds)
    if wanted.places:
        found = {each: _around(bound, each[1], wanted.places) for each, bound in found.items()}
    if wanted.since_ms is not None:
        # Everything before the first record that is young enough is too old, in whatever order they were stamped.
        firsts = offsets_at(admin, list(found), wanted.since_ms)
        found = {
            each: Bounds(max(bound.start, firsts[each]) if firsts[each] >= 0 else bound.end, bound.end)
            for each, bound in found.items()
        }
    return found


def _around(bound: Bounds, index: int, places: frozenset[Place]) -> Bounds:
    offsets = [offset for partition, offset in places if partition == index]
    if not offsets:
        return Bounds(bound.end, bound.end)
    return Bounds(max(bound.start, min(offsets)), min(bound.end, max(offsets) + 1))


def letters_between(cluster: Cluster, bounds: Mapping[Partition, Bounds]) -> Iterator[Letter]:
    return (Letter(message) for message in messages_between(cluster, bounds))


def messages_between(cluster: Cluster, bounds: Mapping[Partition, Bounds], *, few: bool = False) -> Iterator[Message]:
    """Every committed record within the bounds; in the log's order within a partition.

    `few`: it is about single records of many partitions, and little more than those should be fetched.
    """
    from confluent_kafka import TopicPartition

    left = {each: bound.end for each, bound in bounds.items() if bound.start < bound.end}
    if not left:
        return
    consumer = _consumer(cluster, few)
    try:
        # A client that has not heard of the leaders looks for them for seconds.
        topics_of(consumer)
        consumer.assign([TopicPartition(topic, index, bounds[topic, index].start) for topic, index in left])
        deadline = time.monotonic() + ANSWER_SECONDS
        while left:
            first = consumer.poll(0.1)
            if first is None:
                if time.monotonic() > deadline:
                    raise Failed("The records cannot be read: no answer came in time; is the node still running?")
                continue
            for raw in (first, *consumer.consume(BATCH_RECORDS, 0)):
                if _is_within(raw, left):
                    yield from_raw(raw)
            deadline = time.monotonic() + ANSWER_SECONDS
    finally:
        consumer.close()


def _is_within(raw: RawMessage, left: dict[Partition, int]) -> bool:
    """Whether the record is asked for; notes which partitions are done."""
    topic, index, offset, error = raw.topic(), raw.partition(), raw.offset(), raw.error()
    if error is not None:
        # The end may come without its last record: markers and compacted ones are not seen.
        if error.name() == "_PARTITION_EOF" and topic is not None and index is not None:
            left.pop((topic, index), None)
        elif not error.retriable() and error.name() not in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
            raise failed("The records cannot be read", error)
        return False
    assert topic is not None
    assert index is not None
    assert offset is not None
    end = left.get((topic, index))
    if end is None:
        return False
    if offset + 1 >= end:
        del left[topic, index]
    return offset < end


def _consumer(cluster: Cluster, few: bool) -> Consumer:
    return cluster.consumer(
        # librdkafka insists on a name; no group comes into being, because nothing is subscribed or committed.
        group_id="millpond-dlq",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_wait_max_ms=100,
        # With its queue full, or a leader not yet known, the library would rest for a while.
        fetch_queue_backoff_ms=10,
        fetch_error_backoff_ms=10,
        # A redrive with a rate reads slower than it could: what waits in memory meanwhile is bounded.
        queued_max_messages_kbytes=32 * 1024,
        # A broker gives the first batch whole, however small the limit is.
        fetch_message_max_bytes=1 if few else 1 << 20,
        queued_min_messages=1 if few else 100_000,
    )
