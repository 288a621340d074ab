"""A consumer group without a broker: stands in for librdkafka under Consumer and Worker, and rebalances by seed.

As in librdkafka, records and rebalances come through one queue, so that a revocation may run in the middle of
`consume`, after records of that partition have been popped; queued ones are then dropped. As on a broker, a member of
the current generation may commit for any partition, and a removed one may not. The new owner of a partition for which
a transaction is about to commit waits for the outcome.

Each assignment of a partition has a term. A message of an earlier term has no effect, however late it arrives.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millpond.base.ids import TopicPartition as Name
from millpond.client.message import Header
from millpond.client.pending_reports import OnReport

TOPIC = "orders"
TERM = "term"
TAKING_UP_FACTOR = 10
"""A member that is just being assigned a partition is lost this many times as often."""


class Written(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class StubRecord:
    name: Name
    at: int
    written: Written
    term: int
    """The term of the assignment in which it was fetched."""

    def topic(self) -> str:
        return self.name.topic

    def partition(self) -> int:
        return self.name.partition

    def offset(self) -> int:
        return self.at

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> bytes | None:
        return self.written.key

    def value(self) -> bytes | None:
        return self.written.value

    def headers(self) -> list[Header]:
        return [*self.written.headers, (TERM, b"%d" % self.term)]


@dataclass
class Group:
    """The broker's state. Moves of partitions are drawn from `chance`.

    Records of its retry topics are kept and read; what is written elsewhere is an output.
    """

    seed: int
    partitions: int = 4
    records_each: int = 300
    keys: int = 3
    move_chance: float = 0.1
    lose_chance: float = 0.02
    stirs_max: int = 1_000_000
    """No further moves and losses after these: a move would hide a worker that hangs."""
    retry_topics: tuple[str, ...] = ()
    idle_s: float = 0.0005
    """How long a poll without records waits."""
    lock: RLock = field(default_factory=RLock)
    logs: dict[Name, list[Written]] = field(default_factory=dict)
    outputs: list[bytes] = field(default_factory=list)
    committed: dict[Name, int] = field(default_factory=dict)
    members: list[StubConsumer] = field(default_factory=list)
    holders: dict[Name, StubConsumer | None] = field(default_factory=dict)
    terms: dict[Name, int] = field(default_factory=dict)
    """How often each partition was assigned."""
    revoked: set[tuple[Name, int]] = field(default_factory=set)
    """Assignments that were revoked in order: none of their records may run."""
    pending: set[Name] = field(default_factory=set)
    """Partitions that a transaction is about to commit for."""
    moves: int = 0
    losses: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        for n in range(self.partitions):
            self.logs[Name(TOPIC, n)] = [
                Written(b"%d" % (at % self.keys), b"%d/%d" % (n, at)) for at in range(self.records_each)
            ]
            self.logs |= {Name(topic, n): [] for topic in self.retry_topics}
        self.holders = dict.fromkeys(self.logs)
        self.terms = dict.fromkeys(self.holders, 0)

    def join(self, member: StubConsumer) -> None:
        with self.lock:
            self.members.append(member)
            for name, holder in self.holders.items():
                if holder is None:
                    self.give(name, member)

    def leave(self, member: StubConsumer) -> None:
        with self.lock:
            self.members.remove(member)
            for name, holder in self.holders.items():
                if holder is member:
                    self.holders[name] = None
                    if self.members:
                        self.give(name, self.chance.choice(self.members))

    def give(self, name: Name, to: StubConsumer) -> None:
        self.holders[name] = to
        self.terms[name] += 1
        to.queue.append(("assign", (name, self.terms[name])))

    def stir(self) -> None:
        """Perhaps move a partition: revoke it from its holder, or take it without warning."""
        with self.lock:
            if self.moves + self.losses >= self.stirs_max:
                return
            # A short moment in which much can go wrong: hit it on purpose.
            taking = [member for member in self.members if member.is_taking_up]
            if taking and self.chance.random() < TAKING_UP_FACTOR * self.lose_chance:
                self.lose(self.chance.choice(taking))
                return
            held = [name for name, holder in self.holders.items() if holder and name in holder.owned]
            if not held:
                return
            name = self.chance.choice(held)
            holder = self.holders[name]
            assert holder is not None
            if self.chance.random() < self.lose_chance:
                self.lose(holder)
            elif self.chance.random() < self.move_chance:
                self.moves += 1
                # Before, between or behind the queued records.
                holder.queue.insert(self.chance.randint(0, len(holder.queue)), ("revoke", name))

    def lose(self, member: StubConsumer) -> None:
        """Remove the member and reassign its partitions, including those that it has not taken yet.

        It gives up everything it has by then, so a partition left out here would never have an owner again.
        """
        with self.lock:
            self.losses += 1
            member.is_removed = True
            member.queue.appendleft(("lost", None))
            for name, holder in self.holders.items():
                if holder is member:
                    self.give(name, self.chance.choice(self.members))

    def write(self, topic: str, written: Written) -> None:
        with self.lock:
            if topic in self.retry_topics:
                self.logs[Name(topic, sum(written.key or b"") % self.partitions)].append(written)
            else:
                self.outputs.append(written.value or b"")

    def is_done(self) -> bool:
        with self.lock:
            return all(self.committed.get(name, 0) >= len(log) for name, log in self.logs.items())

    def describe(self) -> str:
        """The state, to find out why a run hangs."""
        with self.lock:
            lines = [f"seed {self.seed}, {self.moves} moves, {self.losses} losses"]
            for name, holder in self.holders.items():
                lines.append(f"{name.folder}: {self.committed.get(name)} of {len(self.logs[name])} committed")
                if holder is not None:
                    lines[-1] += (
                        f", held by {self.members.index(holder) if holder in self.members else 'one that left'}, "
                        f"next {holder.owned.get(name)}, paused {name in holder.paused}, "
                        f"removed {holder.is_removed}, queued {[kind for kind, _ in holder.queue][:20]}"
                    )
        return "\n".join(lines)


class StubConsumer:
    """What Consumer uses of confluent_kafka.Consumer."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.queue: deque[tuple[str, Any]] = deque()
        self.owned: dict[Name, int | None] = {}
        """Its partitions with the next offset to fetch; None while a transaction decides it."""
        self.terms: dict[Name, int] = {}
        """The terms of its latest assignments."""
        self.paused: set[Name] = set()
        self.is_removed = False
        """The group has removed it, and refuses its commits until its next assignment."""
        self.is_taking_up = False
        """Its assignment callback is running."""

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost
        self.group.join(self)

    def poll(self, timeout: float) -> StubRecord | None:
        taken = self.pop(1)
        if not taken:
            time.sleep(min(timeout, self.group.idle_s))
        return taken[0] if taken else None

    def consume(self, most: int, timeout: float) -> list[StubRecord]:
        return self.pop(most)

    def pop(self, most: int) -> list[StubRecord]:
        self.group.stir()
        self.fetch()
        taken: list[StubRecord] = []
        while len(taken) < most:
            with self.group.lock:
                if not self.queue:
                    break
                kind, what = self.queue.popleft()
            if kind == "record":
                taken.append(what)
            else:
                self.rebalance(kind, what)
        return taken

    def fetch(self) -> None:
        with self.group.lock:
            for name, at in self.owned.items():
                if at is None:
                    if name in self.group.pending:
                        continue
                    at = self.group.committed.get(name, 0)
                if name not in self.paused:
                    some = self.group.logs[name][at : at + self.group.chance.randint(1, 4)]
                    fetched = [StubRecord(name, n, each, self.terms[name]) for n, each in enumerate(some, at)]
                    self.queue.extend(("record", each) for each in fetched)
                    self.owned[name] = at + len(some)

    def rebalance(self, kind: str, what: Any) -> None:
        if kind == "assign":
            name, term = what
            with self.group.lock:
                if self.group.terms[name] != term:
                    return
                self.terms[name] = term
                self.is_removed = False
                self.is_taking_up = True
            try:
                self.on_assign(self, [TopicPartition(*name)])
            finally:
                self.is_taking_up = False
            return
        with self.group.lock:
            gone = [each for each in self.owned if kind == "lost" or each == what]
        if gone:
            raws = [TopicPartition(*each) for each in gone]
            (self.on_lost if kind == "lost" else self.on_revoke)(self, raws)
            self.incremental_unassign(raws)
        with self.group.lock:
            for each in gone if kind == "revoke" else ():
                self.group.revoked.add((each, self.terms[each]))
                if self.group.holders[each] is self:
                    self.group.give(each, self.group.chance.choice(self.group.members))

    def incremental_assign(self, raws: Iterable[TopicPartition]) -> None:
        with self.group.lock:
            for each in raws:
                name = Name(each.topic, each.partition)
                self.owned[name] = None if name in self.group.pending else self.group.committed.get(name, 0)

    def incremental_unassign(self, raws: Iterable[TopicPartition]) -> None:
        gone = {Name(each.topic, each.partition) for each in raws}
        with self.group.lock:
            # librdkafka keeps a pause until `resume`.
            self.owned = {name: at for name, at in self.owned.items() if name not in gone}
            kept = [op for op in self.queue if not (op[0] == "record" and op[1].name in gone)]
            self.queue.clear()
            self.queue.extend(kept)

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        with self.group.lock:
            self.check_member()
            for each in offsets:
                self.group.committed[Name(each.topic, each.partition)] = each.offset
            return offsets

    def check_member(self, **marks: bool) -> None:
        if self.is_removed:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "removed", **marks))

    def consumer_group_metadata(self) -> StubConsumer:
        return self

    def assignment(self) -> list[TopicPartition]:
        with self.group.lock:
            return [TopicPartition(*name) for name in self.owned]

    def pause(self, raws: list[TopicPartition]) -> None:
        self.paused |= {Name(each.topic, each.partition) for each in raws}

    def resume(self, raws: list[TopicPartition]) -> None:
        self.paused -= {Name(each.topic, each.partition) for each in raws}

    def seek(self, to: TopicPartition) -> None:
        name = Name(to.topic, to.partition)
        with self.group.lock:
            if name not in self.owned:
                raise KafkaException(KafkaError(KafkaError._STATE, "not assigned"))
            kept = [op for op in self.queue if not (op[0] == "record" and op[1].name == name)]
            self.queue.clear()
            self.queue.extend(kept)
            self.owned[name] = to.offset

    def close(self) -> None:
        with self.group.lock:
            gone = [TopicPartition(*name) for name in self.owned]
        if gone:
            self.on_revoke(self, gone)
        self.group.leave(self)


class StubProducer:
    """What Transactional uses of confluent_kafka.Producer: outputs and positions last together, or not at all."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.open: list[tuple[str, Written]] = []
        self.offsets: list[TopicPartition] = []

    def __len__(self) -> int:
        """Everything is delivered at once."""
        return 0

    def init_transactions(self, timeout: float) -> None: ...

    def poll(self, timeout: float) -> int:
        """Nothing is ever refused, so there is nothing to report."""
        return 0

    def begin_transaction(self) -> None:
        self.open, self.offsets = [], []

    def produce(
        self, topic: str, value: bytes, key: bytes | None, *, headers: list[Header], **others: object
    ) -> None:
        self.open.append((topic, Written(key, value, tuple(headers))))

    def send_offsets_to_transaction(
        self, offsets: list[TopicPartition], member: StubConsumer, timeout: float
    ) -> None:
        with self.group.lock:
            member.check_member(txn_requires_abort=True)
            self.offsets = offsets
            self.group.pending |= self.names()

    def commit_transaction(self, timeout: float) -> None:
        with self.group.lock:
            for each in self.open:
                self.group.write(*each)
            self.group.committed.update({Name(each.topic, each.partition): each.offset for each in self.offsets})
            self.group.pending -= self.names()

    def abort_transaction(self, timeout: float) -> None:
        with self.group.lock:
            self.group.pending -= self.names()

    def names(self) -> set[Name]:
        return {Name(each.topic, each.partition) for each in self.offsets}

    def flush(self, timeout: float) -> int:
        return 0


class StubSender:
    """What a worker that delivers at least once uses of Producer. `later` defers a call."""

    def __init__(self, group: Group, later: Callable[[Callable[[], None]], None]) -> None:
        self.group = group
        self.later = later

    def send_with_callback(
        self,
        on_report: OnReport,
        topic: str,
        value: bytes,
        key: bytes | None,
        *,
        headers: Iterable[Header],
        partition: int | None,
    ) -> None:
        def arrive() -> None:
            self.group.write(topic, Written(key, value, tuple(headers)))
            on_report(None)

        self.later(arrive)


def stub_make(group: Group) -> Callable[..., Any]:
    """Replaces `connection.make`."""

    def make(kind: Any, settings: object, on_raised: object = None) -> Any:
        return StubConsumer(group) if kind.__name__ == "Consumer" else StubProducer(group)

    return make
