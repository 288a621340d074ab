"""Dead letters, the topics that hold them, and the filter that selects them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from millpond.admin.dead_letters.tally import UNKNOWN, short_name
from millpond.admin.errors import NotDeadLetters, Refused, unknown_topic
from millpond.admin.offsets import Bounds, bounds_of
from millpond.admin.topics import led_partitions
from millpond.base.ids import TopicPartition
from millpond.base.named_tuple import NamedTuple
from millpond.client.dead_letters import ENDING, TOPIC, DeadLetter, read_dead_letter
from millpond.client.errors import DecodeFailed
from millpond.client.message import Message
from millpond.remote import offsets
from millpond.remote.cluster import Cluster, TopicInfo
from millpond.remote.reader import first_records, read_records
from millpond.wire.records import Record

REDRIVEN_ENDING: Final = ".redriven"
"""Suffix of the topic that records which letters of a dead-letter topic were redriven."""

INTERNAL: Final = "__"
PARTITIONS_PEEKED_MAX: Final = 500
"""Limit on partitions whose first record is checked in topics not named as dead-letter topics."""

Progress = Callable[[int, int], None]
"""Called with the offsets read so far and the total; the total is 0 until it is known.

An exception that it raises stops the read.
"""


def ignore_progress(looked: int, total: int) -> None:
    """Ignore progress."""


def poll_progress(bounds: Mapping[TopicPartition, Bounds], progress: Progress) -> Callable[[], bool]:
    """An `is_up` for reads that precede the letters: no time limit, but `progress` can stop it by raising."""
    total = sum(max(0, bound.end - bound.start) for bound in bounds.values())

    def poll() -> bool:
        progress(0, total)
        return False

    return poll


class LetterId(NamedTuple):
    """Partition and offset of a letter."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class Letter:
    """One record of a dead-letter topic."""

    def __init__(self, message: Message) -> None:
        self.message = message

    @property
    def id(self) -> LetterId:
        return LetterId(self.message.partition, self.message.offset)

    @cached_property
    def facts(self) -> DeadLetter | None:
        """The decoded dead-letter headers; None if no worker wrote this record."""
        try:
            return read_dead_letter(self.message)
        except DecodeFailed:
            return None

    @property
    def error_type(self) -> str:
        return self.facts.error_type if self.facts else ""


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects letters. Empty or None fields match everything; the others must all match."""

    errors: frozenset[str] = frozenset()
    """Error types: fully qualified, without the module, or by the shortened name they are counted under."""
    keys: frozenset[bytes] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive upper bound on the letter's timestamp."""
    ids: frozenset[LetterId] = frozenset()
    groups: frozenset[str] = frozenset()
    """The groups that failed."""
    origins: frozenset[str] = frozenset()
    """The topics that the records were read from."""

    def takes(self, letter: Letter) -> bool:
        message = letter.message
        return (
            (not self.ids or letter.id in self.ids)
            and (self.since_ms is None or message.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or message.timestamp_ms < self.until_ms)
            and (not self.keys or message.key in self.keys)
            and (not self.errors or self._names(letter.error_type))
            and (not self.groups or (letter.facts is not None and letter.facts.group in self.groups))
            and (not self.origins or (letter.facts is not None and letter.facts.origin.topic in self.origins))
        )

    @property
    def is_open(self) -> bool:
        """Whether the filter matches every letter."""
        return self == Filter()

    def _names(self, error_type: str) -> bool:
        # An empty name must match nothing: letters without an error type match UNKNOWN instead.
        names = {error_type, error_type.rpartition(".")[2], short_name(error_type)} - {""}
        return not self.errors.isdisjoint(names or {UNKNOWN})


class LetterTopic:
    """A topic that holds dead letters, recognised by its name or by the headers of every record in it."""

    def __init__(self, cluster: Cluster, info: TopicInfo, bounds: Mapping[TopicPartition, Bounds]) -> None:
        self.cluster = cluster
        self.info = info
        self.bounds = bounds
        """Start offset and last stable offset of each partition that has a leader."""

    @classmethod
    def find(cls, cluster: Cluster, name: str, is_up: Callable[[], bool] = lambda: False) -> LetterTopic:
        """Look up the topic; raises NotDeadLetters if it does not hold dead letters."""
        infos = cluster.topics()
        if name not in infos:
            raise unknown_topic(name, infos)
        if name.startswith(INTERNAL):
            raise _refusal(name, "it is an internal topic")
        topic = cls(cluster, infos[name], bounds_of(cluster, led_partitions([infos[name]]), "read_committed"))
        topic.check(infos, is_up)
        return topic

    def check(self, topic_names: Container[str], is_up: Callable[[], bool]) -> None:
        """Raise NotDeadLetters if neither the name nor the contents say so; `known` holds all topic names."""
        if self.is_named_so or list(self.edges(is_up)) or marks_topic(self.name) in topic_names:
            return
        if is_up():
            raise Refused(f"{self.name} could not be read in time: try again")
        reason = "its partitions have no leader now" if self.leaderless else "it is empty"
        raise _refusal(self.name, f"{reason}, and its name does not end in {ENDING}")

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def is_named_so(self) -> bool:
        return self.name.endswith(ENDING)

    @property
    def leaderless(self) -> tuple[int, ...]:
        """Partitions without a leader. They cannot be read now and have no bounds."""
        return tuple(sorted(set(self.info.partitions) - {each.partition for each in self.bounds}))

    def is_held_back(self) -> bool:
        """Whether an open transaction holds back records (the LSO is below the high watermark)."""
        ends = offsets.latest(self.cluster, self.bounds)
        return any(ends[each] > bound.end for each, bound in self.bounds.items())

    def narrowed(self, selection: Filter) -> dict[TopicPartition, Bounds]:
        """The bounds of each partition, narrowed to where the filter can match."""
        bounds = dict(self.bounds)
        if selection.ids:
            bounds = {each: _around(bound, each.partition, selection.ids) for each, bound in bounds.items()}
        if selection.since_ms is not None:
            # Every record before the first one at or after `since_ms` is too old, whatever the order of timestamps.
            firsts = offsets.at_times(self.cluster, dict.fromkeys(bounds, selection.since_ms))
            bounds = {
                each: Bounds(bound.end if (at := firsts[each]) is None else max(bound.start, at), bound.end)
                for each, bound in bounds.items()
            }
        return bounds

    def letters(
        self,
        bounds: Mapping[TopicPartition, Bounds],
        progress: Progress = ignore_progress,
        is_up: Callable[[], bool] = lambda: False,
    ) -> Iterator[Letter]:
        """Yield every committed letter within the bounds, in log order within a partition.

        Raises NotDeadLetters at the first record that is not a dead letter, unless the topic's name says it holds
        them. `progress` and `is_up`, which stops the read, are also called across stretches that yield no record.
        """
        # Narrowing from both sides can leave an empty range.
        filled = {each: bound for each, bound in bounds.items() if bound.start < bound.end}
        before, total = 0, sum(bound.end - bound.start for bound in filled.values())
        is_ended = False
        for partition, (start, end) in filled.items():

            def is_over(at: int, passed: int = before - start) -> bool:
                nonlocal is_ended
                progress(passed + at, total)
                is_ended = is_up()
                return is_ended

            for record in read_records(
                self.cluster, partition, start, end, isolation="read_committed", is_up=is_over
            ):
                progress(before + record.offset - start, total)
                yield self._letter(partition, record)
            if is_ended:
                return
            before += end - start
        progress(before, total)

    def edges(self, is_up: Callable[[], bool]) -> Iterator[int]:
        """Yield the timestamps of the first and of one of the last letters of each partition, until time is up.

        Raises NotDeadLetters if such a record is not a dead letter, unless the topic's name says it holds them.
        """
        filled = {each: bound for each, bound in self.bounds.items() if bound.start < bound.end}
        # A transaction's end marker follows its records, so the last offset may hold no data record.
        for starts in (
            {each: bound.start for each, bound in filled.items()},
            {each: max(bound.start, bound.end - 2) for each, bound in filled.items()},
        ):
            edges = first_records(self.cluster, starts, _edge, isolation="read_committed", is_up=is_up)
            for partition, edge in edges.items():
                if not edge.is_letter and not self.is_named_so:
                    raise self._foreign_record(LetterId(partition.partition, edge.offset))
                yield edge.timestamp_ms

    def _letter(self, partition: TopicPartition, record: Record) -> Letter:
        letter = Letter(
            Message(*partition, record.offset, record.timestamp, record.key, record.value, record.headers)
        )
        if letter.facts is None and not self.is_named_so:
            raise self._foreign_record(letter.id)
        return letter

    def _foreign_record(self, record: LetterId) -> NotDeadLetters:
        return _refusal(self.name, f"its record {record} has no header {TOPIC}")


class _Edge(NamedTuple):
    """The fields needed of a record at the start or end of a partition."""

    offset: int
    timestamp_ms: int
    is_letter: bool


def _edge(record: Record) -> _Edge:
    named = [value for name, value in record.headers if name == TOPIC]
    return _Edge(record.offset, record.timestamp, bool(named) and named[-1] is not None)


def find_letter_topics(cluster: Cluster, is_up: Callable[[], bool] = lambda: False) -> tuple[list[LetterTopic], int]:
    """The dead-letter topics of a cluster, and how many partitions of other topics were not checked.

    Partitions are left out beyond PARTITIONS_PEEKED_MAX or when time is up.
    """
    infos = cluster.topics()
    names = [name for name in sorted(infos) if not name.startswith(INTERNAL)]
    suspects = {name for name in names if name.endswith(ENDING) or marks_topic(name) in infos}
    others = [name for name in names if name not in suspects]
    partitions = led_partitions(infos[name] for name in others)
    peeked = partitions[:PARTITIONS_PEEKED_MAX]
    bounds = bounds_of(cluster, peeked, "read_committed")
    starts = {each: bound.start for each, bound in bounds.items() if bound.start < bound.end}
    first = first_records(cluster, starts, _edge, isolation="read_committed", is_up=is_up)
    suspects |= {partition.topic for partition, edge in first.items() if edge.is_letter}
    # One request for all: a request per topic would be slow on a large cluster.
    inside = bounds_of(cluster, led_partitions(infos[name] for name in sorted(suspects)), "read_committed")
    own: dict[str, dict[TopicPartition, Bounds]] = {name: {} for name in sorted(suspects)}
    for each, bound in inside.items():
        own[each.topic][each] = bound
    topics = []
    left_out = len(partitions) - len(peeked) + (len(starts) - len(first) if is_up() else 0)
    for name, bounded in own.items():
        topic = LetterTopic(cluster, infos[name], bounded)
        try:
            topic.check(infos, is_up)
        except NotDeadLetters:
            continue
        except Refused:
            left_out += len(bounded)
            continue
        topics.append(topic)
    return topics, left_out


def marks_topic(name: str) -> str:
    return name + REDRIVEN_ENDING


def _around(bound: Bounds, index: int, ids: frozenset[LetterId]) -> Bounds:
    offsets_there = [offset for partition, offset in ids if partition == index]
    if not offsets_there:
        return Bounds(bound.end, bound.end)
    return Bounds(max(bound.start, min(offsets_there)), min(bound.end, max(offsets_there) + 1))


def _refusal(name: str, reason: str) -> NotDeadLetters:
    return NotDeadLetters(
        f"{name} is not a dead-letter topic: {reason}. Nothing was changed; list dead-letter topics with "
        "`millpond dlq list`."
    )
