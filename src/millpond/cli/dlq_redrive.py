"""`millpond dlq redrive`: letters go back to where they came from, each once, whatever interrupts it.

First everything that is meant is counted, then it is sent in transactions of a few hundred records. Each of them also
writes which letters it sent (see dlq_progress). Whatever kills the command, a transaction is there as a whole or not
at all, and the next run, which ends what the last one left open, goes on exactly behind it.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from millpond.cli.connect import ANSWER_SECONDS, Cluster, topics_of
from millpond.cli.dlq_progress import Page, Redriven, ensure_state_topic, read_redriven, state_topic
from millpond.cli.dlq_read import Filter, Letter, Place, letter_bounds, letters_between, narrowed
from millpond.cli.errors import Failed, failed, unknown_topic
from millpond.cli.offsets import Bounds, Partition
from millpond.client.dead_letters import REDRIVEN, own_headers, redriven_count

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

BATCH_BYTES_MAX: Final = 16_000_000
TRANSACTION_SECONDS_MAX: Final = 60
NAMED_MAX: Final = 10
"""How many single letters a report names before it only counts."""
NAP_SECONDS: Final = 0.05


class Fate(Enum):
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
class Order:
    """What somebody wants to have redriven, and how."""

    topic: str
    wanted: Filter
    to: str | None = None
    redrives_max: int = 3
    rate: float | None = None
    batch: int = 500

    def fate(self, letter: Letter, redriven: Redriven) -> Fate:
        if not self.wanted.takes(letter):
            return Fate.OTHER
        if letter.place in redriven:
            return Fate.DONE
        if redriven_count(letter.message) >= self.redrives_max:
            return Fate.HELD
        return Fate.SENT if self.target(letter) else Fate.HOMELESS

    def target(self, letter: Letter) -> str | None:
        return self.to or (letter.told.origin.topic if letter.told else None)


@dataclass(slots=True)
class Plan:
    """What a redrive is going to do."""

    bounds: dict[Partition, Bounds]
    fates: Counter[Fate] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    held: list[Place] = field(default_factory=list)
    missing: list[Place] = field(default_factory=list)
    """Letters that were asked for by their place and are not there."""


def make_plan(cluster: Cluster, order: Order) -> tuple[Plan, Redriven]:
    """Counts what is meant. Changes nothing."""
    admin = cluster.admin()
    bounds = narrowed(admin, letter_bounds(admin, order.topic), order.wanted)
    redriven = read_redriven(cluster, admin, order.topic)
    plan = Plan(bounds)
    missing = set(order.wanted.places)
    for letter in letters_between(cluster, bounds):
        missing.discard(letter.place)
        fate = order.fate(letter, redriven)
        plan.fates[fate] += 1
        if fate is Fate.SENT:
            plan.targets[order.target(letter) or ""] += 1
        elif fate is Fate.HELD and len(plan.held) < NAMED_MAX:
            plan.held.append(letter.place)
    plan.missing = sorted(missing)
    known = topics_of(admin)
    for target in plan.targets:
        if target not in known:
            raise unknown_topic(target, known)
        if target in (order.topic, state_topic(order.topic)):
            raise Failed(f"Letters of {order.topic} cannot be redriven into {target}: name another with --to.")
    return plan, redriven


def open_producer(cluster: Cluster, topic: str) -> Producer:
    """A producer that has ended what an earlier redrive of the topic left open, and keeps that one from going on."""
    from confluent_kafka import KafkaException

    admin = cluster.admin()
    letter_bounds(admin, topic)
    ensure_state_topic(admin, topic)
    producer = cluster.producer(
        transactional_id=f"dlq-redrive.{topic}",
        transaction_timeout_ms=TRANSACTION_SECONDS_MAX * 1000,
        # As Java clients choose, so that a key finds the partition that it was in.
        partitioner="murmur2_random",
        linger_ms=5,
        compression_type="lz4",
        delivery_report_only_error=True,
    )
    # A client that has not heard of the leaders looks for them for seconds.
    topics_of(producer)
    try:
        producer.init_transactions(ANSWER_SECONDS)
    except KafkaException as refusal:
        raise failed("The redrive cannot begin a transaction", refusal.args[0]) from None
    return producer


class Redrive:
    """Sends what is meant, until it is done or somebody asks it to stop."""

    def __init__(self, cluster: Cluster, producer: Producer, order: Order, plan: Plan, redriven: Redriven) -> None:
        self._cluster = cluster
        self._producer = producer
        self._order = order
        self._plan = plan
        self._redriven = redriven
        self._partition_counts = {
            name: len(topic.partitions) for name, topic in topics_of(producer).items() if name in plan.targets
        }
        self.sent = 0
        self.stopped = False

    def run(self, report: Callable[[int], None]) -> None:
        """`report` hears how many have been sent after each transaction."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._run(report)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self, report: Callable[[int], None]) -> None:
        began = time.monotonic()
        for batch in self._batches():
            if self._order.rate:
                self._wait_until(began + self.sent / self._order.rate)
            if self.stopped:
                return
            self._send(batch)
            self.sent += len(batch)
            report(self.sent)

    def _stop(self, *_: object) -> None:
        # Only noted, and looked at between two transactions: what has begun is quickly done.
        self.stopped = True

    def _batches(self) -> Iterator[list[Letter]]:
        count_max, batch, size = self._count_max(), list[Letter](), 0
        for letter in letters_between(self._cluster, self._plan.bounds):
            if self.stopped:
                return
            if self._order.fate(letter, self._redriven) is not Fate.SENT:
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

    def _wait_until(self, moment: float) -> None:
        while not self.stopped and (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, NAP_SECONDS))

    def _send(self, batch: list[Letter]) -> None:
        """One transaction: the records and the marks that say so."""
        from confluent_kafka import KafkaException

        try:
            self._producer.begin_transaction()
            pages = set[Page]()
            for letter in batch:
                self._produce(letter)
                pages.add(self._redriven.add(letter.place))
            for key, value in self._redriven.written(pages):
                self._producer.produce(state_topic(self._order.topic), value, key, partition=0)
            self._producer.commit_transaction()
        except KafkaException as refusal:
            raise self._interrupted(refusal.args[0]) from None

    def _produce(self, letter: Letter) -> None:
        message = letter.message
        target = self._order.target(letter)
        assert target is not None
        headers: list[tuple[str, str | bytes | None]] = [*own_headers(message.headers)]
        headers.append((REDRIVEN, b"%d" % (redriven_count(message) + 1)))
        partition = self._partition(letter, target)
        self._producer.produce(target, message.value, message.key, partition=partition, headers=headers)

    def _partition(self, letter: Letter, target: str) -> int:
        """The one it was in, which may have been chosen by other means than the key; -1 leaves it to the key."""
        origin = letter.told.origin if letter.told else None
        if origin is None or origin.topic != target:
            return -1
        return origin.partition if 0 <= origin.partition < self._partition_counts[target] else -1

    def _interrupted(self, error: KafkaError) -> Failed:
        if error.name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"):
            return Failed(
                f"Another redrive of {self._order.topic} has taken over; {self.sent:,} records were sent here."
            )
        # What is still open is ended by the next run, or by the cluster after a minute.
        told = failed(f"The redrive stopped after {self.sent:,} records", error)
        return Failed(f"{told.message} The same command goes on where it was.")


def counts(plan: Plan) -> Mapping[str, int]:
    """The plan in numbers, by names for programs."""
    return {
        "to_send": plan.fates[Fate.SENT],
        "already_redriven": plan.fates[Fate.DONE],
        "held_back": plan.fates[Fate.HELD],
        "without_origin": plan.fates[Fate.HOMELESS],
        "not_there": len(plan.missing),
    }
