"""Runs a recording: the real engine on simulated nodes, with clients that do what the actions say.

Everything is bounded: virtual time, events, records, clients. An action that cannot be carried out is logged and
changes nothing, so that every recording runs to its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID

from millpond.base.errors import ErrorCode
from millpond.metadata.image import Image, Partition
from millpond.sim.admin import SimAdmin
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.requests import COMMIT_VERSION, Membership, commit_request
from millpond.sim.clients.script import Script, ScriptRunner, Sleep
from millpond.sim.clients.transactions import Fenced, TransactionFailed
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.simulator.actions import (
    Action,
    AddConsumer,
    AddPartitions,
    AddShareConsumer,
    CrashConsumer,
    CreateTopic,
    Cut,
    Elect,
    Heal,
    Produce,
    ResetOffsets,
    SetConfig,
    SetGroupConfig,
    Slow,
    StartNode,
    StopConsumer,
    StopNode,
    Transact,
    in_words,
)
from millpond.sim.simulator.consumer import Consumer
from millpond.sim.simulator.event_log import Story
from millpond.sim.simulator.flights import Flights
from millpond.sim.simulator.ledger import RECORDS_MAX, Ledger, SentRecord
from millpond.sim.simulator.producer import Producer, SendOptions
from millpond.sim.simulator.recording import Recording
from millpond.sim.simulator.share_consumer import ShareConsumer
from millpond.sim.simulator.transactions import LedgerTransactions
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.partitioner import partition_for_key

FOUND_MS: Final = 30_000
LOOK_MS: Final = 5
EVENTS_MAX: Final = 4_000_000
EVENTS_BETWEEN_CHECKS: Final = 100
MADE_RECORDS_MAX: Final = 10 * RECORDS_MAX
"""Limit including records that consumers write: a consumer that writes to its own input never stops."""
TOPICS_MAX: Final = 8
PARTITIONS_MAX: Final = 30
CLIENTS_MAX: Final = 48
TIMEOUT_MS: Final = 1_000
LATENCY_MS: Final = (1, 4)
UNCLEAN: Final = 1
PEOPLE: Final = "you"

SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "50",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.share.session.timeout.ms": "2500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.record.lock.duration.ms": "2000",
    "share.coordinator.state.topic.num.partitions": "1",
    "replica.lag.time.max.ms": "1000",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "leader.imbalance.check.interval.seconds": "10",
}
"""Broker settings with shorter times than usual, for people who watch."""


class TooMuch(Exception):
    """The run exceeds a limit, which the message names."""


@dataclass(slots=True)
class KnownTopic:
    id: UUID
    partitions: int


def never() -> bool:
    return False


class Simulation:
    """Starts as a ready cluster at time zero; `run_to` only moves forward."""

    def __init__(self, tape: Recording, is_over: Callable[[], bool] = never) -> None:
        """`is_over` is called now and then; it returns whether the real time for the run is up."""
        tape.check()
        self.tape = tape
        self.world = SimWorld(tape.seed)
        self.world.network.latency_range_ms = LATENCY_MS
        self.clock = self.world.clock
        self.flights = Flights(self.clock)
        self.world.network.tap = self.flights
        self.story = Story()
        self.ledger = Ledger()
        self.topics: dict[str, KnownTopic] = {}
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[str, Consumer] = {}
        self.share_consumers: dict[str, ShareConsumer] = {}
        self.cuts: dict[tuple[str, str], str] = {}
        """Paths that are cut or slow, and how."""
        self.cluster = SimCluster(self.world, tape.nodes, History(), SETTINGS)
        self._is_over = is_over
        self._admin = SimAdmin(self.client("admin"), self.clock, self.cluster.history)
        self._done = 0
        self._turns: dict[str, int] = {}
        self._known: dict[tuple[str, int], Partition] = {}
        self._journal_told = dict.fromkeys(self.cluster.nodes, 0)
        self._was_up = dict.fromkeys(self.cluster.nodes, True)
        self._went_down: list[int] = []
        self._asked: dict[str, int] = {}
        """The requested number of partitions of each topic."""
        self._checked_at = 0
        self._found()

    # Time

    @property
    def now_ms(self) -> int:
        """Virtual time since the cluster was ready."""
        return self.clock.now_ms - self.story.origin_ms

    def run_to(self, at_ms: int) -> None:
        """Run up to this moment, with every action that is due."""
        for move in self.tape.moves[self._done :]:
            if move.at_ms > at_ms:
                break
            self._run_until(move.at_ms)
            self._done += 1
            self.act(move.action)
        self._run_until(at_ms)

    def go_on(self, tape: Recording) -> None:
        """Continue with a longer recording that begins like this one."""
        assert self.tape.cut(self.now_ms).begins(tape), "another recording"
        self.tape = tape

    def _run_until(self, at_ms: int) -> None:
        left_ms = at_ms - self.now_ms
        if left_ms > 0 and self.world.run_until(self._is_spent, within_ms=left_ms):
            raise TooMuch(
                f"This run was stopped after {self.now_ms / 1000:.1f} s of its own time: "
                "use fewer actions, or go in shorter steps."
            )

    def _is_spent(self) -> bool:
        if self.clock.events_run - self._checked_at < EVENTS_BETWEEN_CHECKS:
            return False
        self._checked_at = self.clock.events_run
        if len(self.ledger.records) > MADE_RECORDS_MAX:
            return True
        return self.clock.events_run > EVENTS_MAX or self._is_over()

    def digest(self) -> str:
        """Equal for equal recordings, however often snapshots were taken."""
        lines = [f"{line.at_ms} {line.who} {line.text}" for line in self.story.lines]
        return hashlib.sha256("\n".join([*lines, str(self.clock.events_run)]).encode()).hexdigest()

    # The beginning

    def _found(self) -> None:
        for node_id in self.cluster.nodes:
            self.cluster.start(node_id)
        if not self.world.run_until(lambda: self._is_founded() or self._is_spent(), within_ms=FOUND_MS):
            raise TooMuch("The cluster was not ready in time.")
        if not self._is_founded():
            raise TooMuch("The cluster was not ready in time.")
        self.story.origin_ms = self.clock.now_ms
        for node_id, node in self.cluster.nodes.items():
            self._journal_told[node_id] = len(node.journal_lines)
        self.tell("cluster", f"{len(self.cluster.nodes)} nodes; node {self.cluster.controller_id} is the controller")
        self._look()

    def _is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def client(self, name: str) -> ClusterClient:
        dice = Random(f"{name} {self.tape.seed}")
        return ClusterClient(self.world.network, self.cluster.nodes, name, dice, timeout_ms=TIMEOUT_MS)

    def tell(self, who: str, text: str) -> None:
        self.story.tell(self.clock.now_ms, who, text)

    # Changes of the metadata, and log lines of nodes

    def _look(self) -> None:
        image = self.cluster.image
        if image is not None:
            self._look_at(image)
        for node_id, node in self.cluster.nodes.items():
            for line in node.journal_lines[self._journal_told[node_id] :]:
                self.tell(f"node {node_id}", line.split(" ", 2)[2])
            self._journal_told[node_id] = len(node.journal_lines)
            if self._was_up[node_id] and not node.is_up:
                self.tell(f"node {node_id}", "is down")
            self._was_up[node_id] = node.is_up
        self.clock.call_later(LOOK_MS, self._look)

    def _look_at(self, image: Image) -> None:
        for name in self.topics:
            topic = image.topics.get(name)
            for index, now in enumerate(topic.partitions if topic is not None else ()):
                before = self._known.get((name, index))
                if before == now:
                    continue
                self._known[name, index] = now
                if before is None:
                    continue
                if before.leader_epoch != now.leader_epoch:
                    is_led = now.leader in self.cluster.nodes
                    led = f"node {now.leader} is the leader now" if is_led else "has no leader"
                    self.tell("controller", f"{name}-{index}: {led} (leader epoch {now.leader_epoch})")
                if set(before.isr) != set(now.isr):
                    self.tell("controller", f"{name}-{index}: in sync {', '.join(map(str, now.isr)) or 'none'}")

    # Actions

    def act(self, action: Action) -> None:
        """Carry out the action now, or log why that is impossible."""
        self.tell(PEOPLE, in_words(action))
        match action:
            case CreateTopic():
                self._create(action)
            case SetConfig():
                self._set_config(action)
            case AddPartitions():
                self._add_partitions(action)
            case Produce():
                self._produce(action)
            case Transact():
                self._transact(action)
            case AddConsumer():
                self._add_consumer(action)
            case AddShareConsumer():
                self._add_share_consumers(action)
            case SetGroupConfig():
                self._set_group_config(action)
            case StopConsumer():
                self._with_consumer(action.consumer, lambda each: each.leave())
            case CrashConsumer():
                self._with_consumer(
                    action.consumer, lambda each: each.crash_between() if action.between else each.crash()
                )
            case ResetOffsets():
                self._reset(action)
            case StopNode():
                self._stop_node(action)
            case StartNode():
                self._start_nodes(action)
            case Cut() | Slow():
                self._change_ways(action)
            case Heal():
                self.world.network.heal()
                self.cuts.clear()
            case Elect():
                self._elect(action)

    def _refuse(self, why: str) -> None:
        self.tell("simulator", f"not possible: {why}")

    # Topics

    def _create(self, action: CreateTopic) -> None:
        self._make_topic(
            action.topic,
            action.partitions,
            min(action.replication, len(self.cluster.nodes)),
            {"min.insync.replicas": str(action.min_insync)},
        )

    def _make_topic(self, name: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        if name in self._asked:
            self._refuse(f"topic {name} exists already")
            return
        if len(self._asked) >= TOPICS_MAX or sum(self._asked.values()) + partitions > PARTITIONS_MAX:
            self._refuse(f"a simulation may have {TOPICS_MAX} topics and {PARTITIONS_MAX} partitions")
            return
        self._asked[name] = partitions

        def created() -> None:
            known = self.cluster.history.topics[name].ids
            (topic_id,) = known
            assert topic_id is not None
            self.topics[name] = KnownTopic(topic_id, partitions)
            self.tell("controller", f"topic {name} exists")

        self._admin.create(name, partitions, configs, created, replication_factor=replication)

    def _set_config(self, action: SetConfig) -> None:
        if self._has_topic(action.topic):
            self._admin.set_config(action.topic, action.setting, action.value, lambda: None)

    def _add_partitions(self, action: AddPartitions) -> None:
        if not self._has_topic(action.topic):
            return
        topic = self.topics[action.topic]
        used = sum(self._asked.values()) - self._asked[action.topic]
        if action.partitions <= self._asked[action.topic] or used + action.partitions > PARTITIONS_MAX:
            self._refuse(f"{action.topic} has {topic.partitions} partitions; there can only be more, up to a limit")
            return
        self._asked[action.topic] = action.partitions

        def added() -> None:
            counts = self.cluster.history.topics[action.topic].partition_counts
            topic.partitions = max(counts)

        self._admin.add_partitions(action.topic, action.partitions, added)

    def _has_topic(self, name: str) -> bool:
        if name not in self.topics:
            self._refuse(f"there is no topic {name} (yet)")
        return name in self.topics

    def partition_count(self, topic: str) -> int:
        return self.topics[topic].partitions

    # Producers

    def _has_room(self, names: Mapping[str, object], name: str) -> bool:
        clients = len(self.producers) + len(self.consumers) + len(self.share_consumers)
        if name in names or clients < CLIENTS_MAX:
            return True
        self._refuse(f"a simulation may have {CLIENTS_MAX} clients")
        return False

    def _produce(self, action: Produce) -> None:
        if not self._has_topic(action.topic) or not self._has_room(self.producers, action.producer):
            return
        if not self.ledger.promise(action.count):
            self._refuse("the run has reached its limit of records")
            return
        if action.producer not in self.producers:
            client = self.client(action.producer)
            self.producers[action.producer] = Producer(client, self.clock, self.ledger, self.story)
        options = SendOptions(action.acks, action.idempotent, action.buffer)
        self._send_next(self.producers[action.producer], action, options, 0)

    def _send_next(self, producer: Producer, action: Produce, options: SendOptions, number: int) -> None:
        """Send all records now, or one after the other."""
        if not action.every_ms:
            for each in range(action.count):
                producer.send(self._record(action, each), options)
            return
        producer.send(self._record(action, number), options)
        if number + 1 < action.count:
            self.clock.call_later(action.every_ms, lambda: self._send_next(producer, action, options, number + 1))

    def _record(self, action: Produce, number: int) -> SentRecord:
        key = action.keys[number % len(action.keys)] if action.keys else None
        if key is not None and action.salt:
            key = f"{key}#{number // max(len(action.keys), 1) % action.salt}"
        count = self.partition_count(action.topic)
        if key is None:
            turn = self._turns[action.topic] = self._turns.get(action.topic, -1) + 1
            partition = turn % count
        else:
            partition = partition_for_key(key.encode(), count)
        record = self.ledger.promised_record(
            SentRecord(0, action.producer, action.topic, partition, key, "", action.acks, self.clock.now_ms)
        )
        record.value = action.value or f"r{record.id}"
        if action.count > 1 and action.value:
            record.value = f"{action.value}{number + 1}"
        return record

    def _transact(self, action: Transact) -> None:
        if not self._has_topic(action.topic):
            return
        if not self.ledger.promise(action.count):
            self._refuse("the run has reached its limit of records")
            return
        client = self.client(action.producer)
        writer = LedgerTransactions(client, self.clock, action.producer)
        ScriptRunner(self.clock, self._transaction(action, writer)).start()

    def _transaction(self, action: Transact, writer: LedgerTransactions) -> Script[None]:
        yield from writer.initialize()
        count = self.partition_count(action.topic)
        by_partition: dict[int, list[SentRecord]] = {}
        for number in range(action.count):
            made = SentRecord(0, action.producer, action.topic, number % count, None, "", "all", self.clock.now_ms)
            record = self.ledger.promised_record(made)
            record.value = f"{action.ending} {number + 1}"
            by_partition.setdefault(record.partition, []).append(record)
        try:
            for index, records in sorted(by_partition.items()):
                yield from writer.send(action.topic, index, records)
            self.tell(action.producer, f"has written {action.count} records, its transaction is open")
            yield Sleep(action.hold_ms)
            if action.ending != "hang":
                yield from writer.end(committed=action.ending == "commit")
                self.tell(action.producer, f"its transaction ends: {action.ending}")
        except (TransactionFailed, Fenced) as why:
            self.tell(action.producer, f"its transaction is over: {why or 'fenced'}")

    # Consumers

    def _add_consumer(self, action: AddConsumer) -> None:
        if not self._has_topic(action.topic) or (action.output and not self._has_topic(action.output)):
            return
        if not self._has_room(self.consumers, action.consumer):
            return
        if action.consumer in self.share_consumers:
            self._refuse(f"{action.consumer} is a member of a share group")
            return
        letters = f"{action.topic}.dlq"
        if action.dead_letters and letters not in self._asked:
            self._make_topic(letters, 1, min(3, len(self.cluster.nodes)), {})
        consumer = self.consumers.get(action.consumer)
        if consumer is None:
            self.consumers[action.consumer] = Consumer(
                action,
                self.topics[action.topic].id,
                self.partition_count,
                self.client,
                self.clock,
                self.ledger,
                self.story,
            )
        elif consumer.plan.topic != action.topic or not consumer.start(action):
            self._refuse(f"{action.consumer} is running already")

    def _add_share_consumers(self, action: AddShareConsumer) -> None:
        if not self._has_topic(action.topic):
            return
        for name in action.names:
            if not self._has_room(self.share_consumers, name):
                return
            worker = self.share_consumers.get(name)
            if name in self.consumers:
                self._refuse(f"{name} is a member of a consumer group")
            elif worker is None:
                topic_id = self.topics[action.topic].id
                self.share_consumers[name] = ShareConsumer(
                    name, action, topic_id, self.client, self.clock, self.ledger, self.story
                )
            elif worker.plan.topic != action.topic or not worker.start(action):
                self._refuse(f"{name} is running already")

    def _set_group_config(self, action: SetGroupConfig) -> None:
        def heard(error: str | None) -> None:
            if error is not None:
                self.tell("controller", f"{action.setting} is unchanged: {error}")

        self._admin.set_group_config(action.group, action.setting, action.value, heard)

    def _with_consumer(self, name: str, act: Callable[[Consumer | ShareConsumer], bool]) -> None:
        consumer = self.consumers.get(name) or self.share_consumers.get(name)
        if consumer is None or not act(consumer):
            self._refuse(f"{name} is not running")

    def _reset(self, action: ResetOffsets) -> None:
        if not self._has_topic(action.topic):
            return
        offsets = dict.fromkeys(range(self.partition_count(action.topic)), action.offset)
        request = commit_request(Membership(action.group), action.topic, offsets)

        def heard(reply: m.OffsetCommitResponse | None) -> None:
            codes = [] if reply is None else [part.error_code for topic in reply.topics for part in topic.partitions]
            words = "no response" if reply is None else next((ErrorCode(code).name for code in codes if code), "done")
            self.tell("coordinator", f"offsets of {action.group}: {words}")

        self.client("admin").send(request, COMMIT_VERSION, heard)

    # Nodes and network

    def _stop_node(self, action: StopNode) -> None:
        node_id = self._node(action.node, action.topic, action.partition)
        if node_id is None or not self.cluster.nodes[node_id].is_up:
            self._refuse("there is no such node, or it is down")
            return
        self._was_up[node_id] = False
        self._went_down.append(node_id)
        if action.power:
            self.cluster.crash(node_id)
            self.tell(f"node {node_id}", "loses power, and the data in its page cache")
        else:
            self.cluster.kill(node_id)
            self.tell(f"node {node_id}", "is killed")

    def _start_nodes(self, action: StartNode) -> None:
        match action.node:
            case "all":
                wanted = list(self.cluster.nodes)
            case "first":
                wanted = self._went_down[:1]
            case number:
                wanted = [int(number)]
        down = [each for each in wanted if each in self.cluster.nodes and not self.cluster.nodes[each].is_up]
        if not down:
            self._refuse("no such node is down")
        for node_id in down:
            is_up = self.cluster.start(node_id)
            self._went_down = [each for each in self._went_down if each != node_id]
            incarnation = self.cluster.nodes[node_id].incarnation
            self.tell(f"node {node_id}", f"starts (incarnation {incarnation})" if is_up else "cannot start")

    def _node(self, word: str, topic: str, index: int) -> int | None:
        """The node that a role names, by the present metadata."""
        if word.isdigit():
            return int(word) if int(word) in self.cluster.nodes else None
        if word == "controller":
            return self.cluster.controller_id
        image = self.cluster.image
        partition = None if image is None else image.partition(topic, index)
        if partition is None:
            return None
        if word == "leader":
            return partition.leader if partition.leader in self.cluster.nodes else None
        if word == "follower":
            others = [each for each in partition.replicas if each != partition.leader and each in self.cluster.nodes]
            return next((each for each in others if self.cluster.nodes[each].is_up), None)
        return None

    def _hosts(self, word: str, action: Cut | Slow, besides: str = "") -> list[str]:
        if word in self.producers or word in self.consumers or word in self.share_consumers:
            return [word]
        if word == "others":
            return [f"node{each}" for each in self.cluster.nodes if f"node{each}" != besides]
        if word == "clients":
            return [*self.producers, *self.consumers, *self.share_consumers]
        node_id = self._node(word.removeprefix("node"), action.topic, action.partition)
        return [] if node_id is None else [f"node{node_id}"]

    def _change_ways(self, action: Cut | Slow) -> None:
        ones = self._hosts(action.one, action)
        ways = [(one, other) for one in ones for other in self._hosts(action.other, action, one) if one != other]
        if not ways:
            self._refuse("there is no node of that name")
        network = self.world.network
        for one, other in ways:
            if isinstance(action, Slow):
                for way in ((one, other), (other, one)):
                    network.set_path(*way, latency_ms=(action.latency_ms, action.latency_ms))
                    self.cuts[way] = f"{action.latency_ms} ms"
            else:
                for way in [(one, other)] if action.one_way else [(one, other), (other, one)]:
                    network.blackhole(*way)
                    self.cuts[way] = "cut"

    def _elect(self, action: Elect) -> None:
        kind = m.ElectLeadersRequest
        request = kind(
            election_type=UNCLEAN,
            topic_partitions=[kind.TopicPartitions(topic=action.topic, partitions=[action.partition])],
            timeout_ms=1_000,
        )

        def heard(reply: m.ElectLeadersResponse | None) -> None:
            if reply is None:
                self.tell("controller", "no response")
                return
            codes = [part.error_code for each in reply.replica_election_results for part in each.partition_result]
            code = ErrorCode(reply.error_code or next(iter(codes), 0))
            self.tell("controller", "elected" if code is ErrorCode.NONE else f"not elected: {code.name}")

        self.client("admin").send(request, 2, heard)

    # For snapshots

    def nodes_up(self) -> Iterator[int]:
        for node_id, node in self.cluster.nodes.items():
            if node.is_up:
                yield node_id
