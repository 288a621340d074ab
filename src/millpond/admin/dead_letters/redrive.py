"""Sending letters back to where they came from, each once, whatever interrupts it.

First everything that is meant is counted, then it is sent in transactions of a few hundred records. Each of them also
writes which letters it sent (see `redriven.py`). Whatever kills the process, a transaction is there as a whole or not
at all, and the next run, which ends what the last one left open, goes on exactly behind it.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from millpond.admin.dead_letters.letters import Filter, Letter, LetterId, LetterTopic, marks_topic
from millpond.admin.dead_letters.redriven import Page, Redriven, ensure_marks_topic, read_redriven
from millpond.admin.errors import Refused, unknown_topic
from millpond.admin.offsets import Bounds
from millpond.base.ids import TopicPartition
from millpond.client.dead_letters import REDRIVEN, own_headers, redriven_count, redriven_headers
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
"""How many single letters a plan names before it only counts."""
NAP_SECONDS: Final = 0.05


class LetterFate(Enum):
    """What a redrive does with a letter."""

    OTHER = auto()
    """The filter does not mean it."""
    DONE = auto()
    """It has been redriven before."""
    HELD = auto()
    """It has come back too often."""
    HOMELESS = auto()
    """Nobody says where it came from."""
    SENT = auto()


@dataclass(frozen=True, slots=True)
class Edit:
    """A record as somebody has corrected it."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """Its own; what a redrive adds is added all the same. None: as they were."""


@dataclass(frozen=True, slots=True)
class RedriveOrder:
    """What somebody wants to have redriven, and how."""

    topic: str
    wanted: Filter
    to: str | None = None
    every_group: bool = False
    """For all groups that read there, and not only for the one that failed it."""
    redrives_max: int = 3
    rate: float | None = None
    batch: int = 500
    edits: Mapping[LetterId, Edit] = field(default_factory=dict)
    """What is sent instead of a letter's own key, value and headers."""

    def fate(self, letter: Letter, redriven: Redriven) -> LetterFate:
        if not self.wanted.takes(letter):
            return LetterFate.OTHER
        if letter.id in redriven:
            return LetterFate.DONE
        if redriven_count(letter.message) >= self.redrives_max:
            return LetterFate.HELD
        return LetterFate.SENT if self.target(letter) else LetterFate.HOMELESS

    def target(self, letter: Letter) -> str | None:
        return self.to or (letter.facts.origin.topic if letter.facts else None)

    def message(self, letter: Letter) -> Message:
        """What is sent: the letter, as it was corrected where somebody has. How often it was sent stays as it is."""
        edit = self.edits.get(letter.id)
        if edit is None:
            return letter.message
        counted = ((REDRIVEN, b"%d" % redriven_count(letter.message)),)
        own = letter.message.headers if edit.headers is None else edit.headers
        headers = (*own_headers(own), *counted)
        return replace(letter.message, key=edit.key, value=edit.value, headers=headers)

    def group(self, letter: Letter) -> str:
        """The group that is meant; "" for all. Who reads another topic has failed nothing of it."""
        return letter.facts.group if letter.facts and not self.every_group and not self.to else ""


@dataclass(slots=True)
class RedrivePlan:
    """What a redrive is going to do."""

    topic: LetterTopic
    redriven: Redriven
    bounds: dict[TopicPartition, Bounds]
    partition_counts: dict[str, int] = field(default_factory=dict)
    """Of the topics that letters go to."""
    fates: Counter[LetterFate] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    """Who they are for; "" for all."""
    held: list[LetterId] = field(default_factory=list)
    missing: list[LetterId] = field(default_factory=list)
    """Letters that were asked for and are not there."""

    @property
    def records(self) -> int:
        """How many are going to be sent."""
        return self.fates[LetterFate.SENT]


def plan_redrive(cluster: Cluster, order: RedriveOrder) -> RedrivePlan:
    """Counts what is meant. Changes nothing."""
    topic = LetterTopic.find(cluster, order.topic)
    plan = RedrivePlan(topic, read_redriven(topic), topic.narrowed(order.wanted))
    missing = set(order.wanted.ids)
    for letter in topic.letters(plan.bounds):
        missing.discard(letter.id)
        fate = order.fate(letter, plan.redriven)
        plan.fates[fate] += 1
        if fate is LetterFate.SENT:
            plan.targets[order.target(letter) or ""] += 1
            plan.groups[order.group(letter)] += 1
        elif fate is LetterFate.HELD and len(plan.held) < NAMED_MAX:
            plan.held.append(letter.id)
    plan.missing = sorted(missing)
    known = cluster.topics()
    for target in plan.targets:
        if target not in known:
            raise unknown_topic(target, known)
        if target in (order.topic, marks_topic(order.topic)):
            raise Refused(f"Letters of {order.topic} cannot be redriven into {target}: name another with --to.")
        plan.partition_counts[target] = len(known[target].partitions)
    return plan


class Redrive:
    """Sends what an order means, until it is done or stopped.

    It takes over at once: what an earlier run left open is ended before anybody reads how far it came, and that run
    cannot go on.
    """

    def __init__(self, cluster: Cluster, order: RedriveOrder) -> None:
        self._order = order
        ensure_marks_topic(LetterTopic.find(cluster, order.topic))
        self._writing = cluster.twin()
        self._identity: ProducerIdentity = init_producer(
            self._writing, f"dlq-redrive.{order.topic}", TRANSACTION_SECONDS_MAX * 1000
        )
        self.plan = plan_redrive(cluster, order)
        self.sent = 0

    def run(self, report: Callable[[int], None], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """`report` hears how many have been sent after each transaction; `is_stopped` is asked between two."""
        began = time.monotonic()
        with self._writing, BatchWriter(self._writing, codec=LZ4, transactional=self._identity) as writer:
            for batch in self._batches(is_stopped):
                if self._order.rate:
                    _wait_until(began + self.sent / self._order.rate, is_stopped)
                if is_stopped():
                    return
                self._send(writer, batch)
                self.sent += len(batch)
                report(self.sent)

    def _batches(self, is_stopped: Callable[[], bool]) -> Iterator[list[Letter]]:
        count_max, batch, size = self._count_max(), list[Letter](), 0
        for letter in self.plan.topic.letters(self.plan.bounds):
            if is_stopped():
                return
            if self._order.fate(letter, self.plan.redriven) is not LetterFate.SENT:
                continue
            batch.append(letter)
            size += len(letter.message.value or b"")
            if len(batch) >= count_max or size >= BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _count_max(self) -> int:
        """With a rate no more than a second's worth, because a transaction is seen all at once."""
        rate = self._order.rate
        return self._order.batch if rate is None else max(1, min(self._order.batch, math.floor(rate)))

    def _send(self, writer: BatchWriter, batch: list[Letter]) -> None:
        """One transaction: the records and the marks that say so."""
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
            if end(self._writing, self._identity, commit=True) is not Outcome.COMMITTED:
                raise Fenced("the transaction was not committed")
        except ClientError as refusal:
            raise self._interrupted(refusal) from refusal

    def _target(self, letter: Letter) -> TopicPartition:
        """The partition it was in, which may have been chosen by other means than the key; else by the key.

        One whose key was corrected goes where that key goes.
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
        # What is still open is ended by the next run, or by the cluster after a minute.
        return Refused(
            f"The redrive stopped after {self.sent:,} records: {refusal}. The same command goes on where it was."
        )


def _wait_until(moment: float, is_stopped: Callable[[], bool]) -> None:
    while not is_stopped() and (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, NAP_SECONDS))
