"""Redrive dead letters to their source topics exactly once, across crashes and restarts.

A redrive first counts the matching letters, then sends them in transactions of a few hundred records. Each
transaction also writes which letters it sent (see `redriven.py`), so after a crash a batch is either fully visible
and marked or not at all. The next run ends the transaction that the last one left open and continues right after it.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, Literal
from uuid import UUID

from millpond.admin.dead_letters.letters import (
    INTERNAL,
    Filter,
    Letter,
    LetterId,
    LetterTopic,
    Progress,
    ignore_progress,
    marks_topic,
    poll_progress,
)
from millpond.admin.dead_letters.redriven import Page, Redriven, ensure_marks_topic, read_redriven
from millpond.admin.dead_letters.tally import Tally
from millpond.admin.errors import Refused, unknown_topic
from millpond.admin.offsets import Bounds
from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import REDRIVEN, VALUE_OMITTED, own_headers, redriven_count, redriven_headers
from millpond.client.message import Headers, Message
from millpond.client.partitioner import by_key
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, Fenced
from millpond.remote.transactions import Outcome, ProducerIdentity, end, init_producer
from millpond.remote.writer import BatchWriter
from millpond.wire.compression import LZ4
from millpond.wire.records import Record

BATCH_BYTES_MAX: Final = 16_000_000
TRANSACTION_SECONDS_MAX: Final = 60
NAMED_MAX: Final = 10
"""A plan lists at most this many individual letters; beyond that it only counts."""
NAP_SECONDS: Final = 0.05


class LetterFate(Enum):
    """What a redrive does with one letter."""

    OTHER = auto()
    """Not matched by the filter."""
    DONE = auto()
    """Already redriven."""
    HELD = auto()
    """Redriven too often already."""
    NO_TARGET = auto()
    """Its source topic is unknown, missing or not a valid target, or its value was dropped."""
    SENT = auto()


class Unedited(Enum):
    """Sentinel for a part of a letter that an edit leaves unchanged."""

    UNCHANGED = auto()


UNCHANGED: Final = Unedited.UNCHANGED


@dataclass(frozen=True, slots=True)
class Edit:
    """Corrections to one record. Unedited parts are sent byte for byte."""

    key: bytes | Literal[Unedited.UNCHANGED] | None = UNCHANGED
    value: bytes | Literal[Unedited.UNCHANGED] | None = UNCHANGED
    headers: Headers | Literal[Unedited.UNCHANGED] = UNCHANGED
    """The record's own headers; a redrive still adds its own."""


@dataclass(frozen=True, slots=True)
class RedriveOrder:
    """Which letters to redrive, and how."""

    topic: str
    selection: Filter
    to: str | None = None
    every_group: bool = False
    """Address the records to all consumer groups of the topic, not only to the one that failed."""
    redrives_max: int = 3
    rate: float | None = None
    batch: int = 500
    edits: Mapping[LetterId, Edit] = field(default_factory=dict)
    """Replacement keys, values and headers by letter."""
    topic_id: UUID | None = None
    """The id of the topic in which the letters were seen; None for the current topic of that name."""

    def target(self, letter: Letter) -> str | None:
        return self.to or (letter.facts.origin.topic if letter.facts else None)

    def message(self, letter: Letter) -> Message:
        """The record to send: the letter with its edits applied. Its redrive count is kept."""
        edit = self.edits.get(letter.id)
        if edit is None:
            return letter.message
        message = letter.message
        counted = ((REDRIVEN, b"%d" % redriven_count(message)),)
        own = message.headers if edit.headers is UNCHANGED else edit.headers
        return replace(
            message,
            key=message.key if edit.key is UNCHANGED else edit.key,
            value=message.value if edit.value is UNCHANGED else edit.value,
            headers=(*own_headers(own), *counted),
        )

    def has_new_value(self, letter: Letter) -> bool:
        edit = self.edits.get(letter.id)
        return edit is not None and edit.value is not UNCHANGED

    def group(self, letter: Letter) -> str:
        """The group the record is addressed to; "" for all. Groups of another topic never failed this record."""
        return letter.facts.group if letter.facts and not self.every_group and not self.to else ""


@dataclass(slots=True)
class RedrivePlan:
    """What a redrive will do with the letters within the bounds, and only those."""

    order: RedriveOrder
    topic: LetterTopic
    redriven: Redriven
    bounds: dict[TopicPartition, Bounds]
    possible: frozenset[str] = frozenset()
    """Topics that letters may be sent to; in a finished plan, those that letters are sent to."""
    partition_counts: dict[str, int] = field(default_factory=dict)
    """Partition counts of the target topics."""
    fates: Counter[LetterFate] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    groups: Tally = field(default_factory=Tally)
    """Letters by the group they are addressed to; "" for all groups."""
    held: list[LetterId] = field(default_factory=list)
    missing: list[LetterId] = field(default_factory=list)
    """Requested letters that do not exist."""

    @property
    def records(self) -> int:
        """How many records will be sent."""
        return self.fates[LetterFate.SENT]

    def fate(self, letter: Letter) -> LetterFate:
        if not self.order.selection.takes(letter):
            return LetterFate.OTHER
        if letter.id in self.redriven:
            return LetterFate.DONE
        if redriven_count(letter.message) >= self.order.redrives_max:
            return LetterFate.HELD
        if letter.message.header(VALUE_OMITTED) is not None and not self.order.has_new_value(letter):
            # Without its value the record would be a tombstone in a compacted topic.
            return LetterFate.NO_TARGET
        return LetterFate.SENT if self.order.target(letter) in self.possible else LetterFate.NO_TARGET


def plan_redrive(cluster: Cluster, order: RedriveOrder, progress: Progress = ignore_progress) -> RedrivePlan:
    """Count the matching letters. Changes nothing."""
    topic = LetterTopic.find(cluster, order.topic, poll_progress({}, progress))
    if order.topic_id not in (None, topic.info.topic_id):
        raise Refused(f"{order.topic} was recreated since its letters were read: reload them")
    bounds = topic.narrowed(order.selection)
    return _plan(RedrivePlan(order, topic, read_redriven(topic, poll_progress(bounds, progress)), bounds), progress)


def _plan(plan: RedrivePlan, progress: Progress = ignore_progress) -> RedrivePlan:
    """Fill in the plan by reading the letters within its bounds."""
    order, cluster = plan.order, plan.topic.cluster
    missing = set(order.selection.ids)
    plan.possible = _possible_targets(cluster, order)
    for letter in plan.topic.letters(plan.bounds, progress):
        missing.discard(letter.id)
        fate = plan.fate(letter)
        plan.fates[fate] += 1
        if fate is LetterFate.SENT:
            plan.targets[order.target(letter) or ""] += 1
            plan.groups.note(order.group(letter))
        elif fate is LetterFate.HELD and len(plan.held) < NAMED_MAX:
            plan.held.append(letter.id)
    plan.missing = sorted(missing)
    plan.possible = frozenset(plan.targets)
    plan.partition_counts = _partition_counts(cluster, plan)
    return plan


def _possible_targets(cluster: Cluster, order: RedriveOrder) -> frozenset[str]:
    """A header can hold any text: a bad topic name in one letter must not block the others."""
    if order.to:
        return frozenset({order.to})
    own = {order.topic, marks_topic(order.topic)}
    return frozenset(each for each in cluster.topics() if each not in own and not each.startswith(INTERNAL))


def _partition_counts(cluster: Cluster, plan: RedrivePlan) -> dict[str, int]:
    """Partition counts of the target topics; Refused if one is missing or not a valid target."""
    topic, infos = plan.order.topic, cluster.topics()
    counts = {}
    for target in plan.targets:
        if target not in infos:
            raise unknown_topic(target, infos)
        if target in (topic, marks_topic(topic)):
            raise Refused(f"Letters of {topic} cannot be redriven into {target}: name another with --to.")
        counts[target] = len(infos[target].partitions)
    return counts


class Redrive:
    """Runs a redrive until it is done or stopped.

    It fences the previous run as soon as there is something to send: that run's open transaction is ended before its
    progress is read, and it cannot continue. Every refusal comes before that.
    """

    def __init__(self, cluster: Cluster, order: RedriveOrder, *, agreed: RedrivePlan | None = None) -> None:
        """With an agreed plan, do exactly that; Refused if the outcome would differ by now."""
        self._order = order
        self.plan = plan_redrive(cluster, order) if agreed is None else _still(cluster, agreed)
        self.sent = 0
        self._writing = cluster.twin()
        self._identity: ProducerIdentity | None = None
        """None: nothing to send, so no previous run was fenced."""
        if not self.plan.records:
            return
        try:
            ensure_marks_topic(self.plan.topic)
            transactional_id = f"dlq-redrive.{order.topic}"
            self._identity = init_producer(self._writing, transactional_id, TRANSACTION_SECONDS_MAX * 1000)
            redriven = read_redriven(self.plan.topic, must_exist=True)
            if redriven != self.plan.redriven:
                # Another run was active while this one was planned.
                if agreed is not None:
                    raise _another("letters were redriven in the meantime")
                self.plan = _plan(RedrivePlan(order, self.plan.topic, redriven, self.plan.bounds))
        except BaseException:
            self._writing.close()
            raise

    def run(self, report: Callable[[int], None], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Call `report` with the number sent after each transaction; check `is_stopped` between transactions."""
        identity = self._identity
        if identity is None:
            return
        began = time.monotonic()
        with self._writing, BatchWriter(self._writing, codec=LZ4, transactional=identity) as writer:
            for batch in self._batches(is_stopped):
                if self._order.rate:
                    _wait_until(began + self.sent / self._order.rate, is_stopped)
                if is_stopped():
                    return
                self._send(writer, identity, batch)
                self.sent += len(batch)
                report(self.sent)

    def _batches(self, is_stopped: Callable[[], bool]) -> Iterator[list[Letter]]:
        count_max, batch, size = self._count_max(), list[Letter](), 0
        for letter in self.plan.topic.letters(self.plan.bounds):
            if is_stopped():
                return
            if self.plan.fate(letter) is not LetterFate.SENT:
                continue
            batch.append(letter)
            size += _size(self._order.message(letter))
            if len(batch) >= count_max or size >= BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _count_max(self) -> int:
        """With a rate limit, at most one second's worth: a transaction becomes visible all at once."""
        rate = self._order.rate
        return self._order.batch if rate is None else max(1, min(self._order.batch, math.floor(rate)))

    def _send(self, writer: BatchWriter, identity: ProducerIdentity, batch: list[Letter]) -> None:
        """Send the records and their redriven marks in one transaction."""
        records: dict[TopicPartition, list[Record]] = defaultdict(list)
        now_ms = time.time_ns() // 1_000_000
        pages = set[Page]()
        for letter in batch:
            message = self._order.message(letter)
            headers = redriven_headers(message, group=self._order.group(letter))
            record = Record(0, now_ms, message.key, message.value, headers)
            records[self._target(letter)].append(record)
            pages.add(self.plan.redriven.add(letter.id))
        marks = TopicPartition(marks_topic(self._order.topic), 0)
        records[marks] = [Record(0, now_ms, key, value) for key, value in self.plan.redriven.written(pages)]
        try:
            writer.begin_transaction()
            for partition, each in records.items():
                writer.append_records(partition, each)
            writer.flush()
            if end(self._writing, identity, commit=True) is not Outcome.COMMITTED:
                raise Fenced("the transaction was not committed")
        except ClientError as refusal:
            raise self._interrupted(refusal) from refusal

    def _target(self, letter: Letter) -> TopicPartition:
        """The letter's original partition, which may not follow from its key; otherwise the key's partition.

        A letter with an edited key goes to the partition of the new key.
        """
        topic, key = self._order.target(letter), self._order.message(letter).key
        assert topic is not None
        count = self.plan.partition_counts[topic]
        origin = letter.facts.origin if letter.facts else None
        is_same_key = key == letter.message.key
        if origin is not None and origin.topic == topic and 0 <= origin.partition < count and is_same_key:
            return TopicPartition(topic, origin.partition)
        return TopicPartition(topic, by_key(key, count))

    def _interrupted(self, refusal: ClientError) -> Refused:
        if isinstance(refusal, Fenced):
            return Refused(
                f"Another redrive of {self._order.topic} has taken over; {self.sent:,} records were sent here."
            )
        # The next run ends an open transaction; otherwise the coordinator aborts it after a minute.
        return Refused(
            f"The redrive stopped after {self.sent:,} records: {refusal}. Run the same command to continue."
        )


def _size(message: Message) -> int:
    parts = (message.key, message.value, *(value for _, value in message.headers))
    return sum(len(each or b"") for each in parts) + sum(len(name) for name, _ in message.headers)


def _still(cluster: Cluster, agreed: RedrivePlan) -> RedrivePlan:
    """The agreed plan, bound to this cluster client; Refused if it would no longer do the same.

    Letters do not change, so they are not read again: only the marks and the target topics are checked.
    """
    order = agreed.order
    topic = LetterTopic.find(cluster, order.topic)
    if topic.info.topic_id != agreed.topic.info.topic_id:
        raise _another(f"{order.topic} was recreated")
    for partition, bound in agreed.bounds.items():
        there = topic.bounds.get(partition)
        if bound.start < bound.end and (there is None or there.start > bound.start or there.end < bound.end):
            raise _another(f"letters of {partition} can no longer be read")
    if _partition_counts(cluster, agreed) != agreed.partition_counts:
        raise _another("the partition count of a target topic has changed")
    redriven = read_redriven(topic)
    if redriven != agreed.redriven:
        raise _another("letters were redriven in the meantime")
    # A separate copy of the marks, because a run adds to them.
    return replace(agreed, topic=topic, redriven=redriven)


def _another(reason: str) -> Refused:
    return Refused(f"The redrive would no longer match the dry run: {reason}. Run a dry run again; nothing was sent")


def _wait_until(moment: float, is_stopped: Callable[[], bool]) -> None:
    while not is_stopped() and (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, NAP_SECONDS))
