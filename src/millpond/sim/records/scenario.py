"""One seeded run of a node: clients work under faults, then everything heals, is read back and checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from random import Random

from millpond.sim.admin import SimAdmin
from millpond.sim.clients.client import SimClient
from millpond.sim.clients.producer import SimProducer
from millpond.sim.clients.reader import SimReader
from millpond.sim.fault_injector import FaultInjector
from millpond.sim.history.records import Content, History, Promise, TopicIdPartition, in_order_of_time
from millpond.sim.node import DATA_FOLDER, SimNode
from millpond.sim.records.checkers import TopicRules, check_folder, check_metadata, check_partition
from millpond.sim.records.plan import WORK_MS, Plan, ProducerPlan, TopicPlan, make_plan
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

SETTLE_MS = 240_000
READ_MS = 60_000
START_TRIES = 3


@dataclass(slots=True)
class Outcome:
    """The result of one run."""

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    records_checked: int = 0
    starts: int = 0
    events: int = 0
    disk_operations: int = 0
    virtual_ms: int = 0
    spurious_refusals: int = 0
    syncs_together: int = 0
    trace_hash: str = ""


class Scenario:
    """A world from a seed. `run` runs it to its end."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan or make_plan(seed)
        self.sim = SimWorld(seed)
        self.node = SimNode(self.sim, texts=self.plan.node)
        self.node.workers_delay_ms_usual = self.plan.disk_delay_ms
        self.history = History()
        self.random = Random(f"scenario {seed}")
        self.injector = FaultInjector(self.sim, self.node, self.history, Random(f"injector {seed}"))
        self.admin = SimAdmin(self._client("admin"), self.sim.clock, self.history)
        self.topics: dict[str, TopicPlan] = {topic.name: topic for topic in self.plan.topics}
        self.partitions: list[TopicIdPartition] = []
        """Where records may be sent now."""
        self.limited_topics: dict[str, None] = {}
        """Where records may have been deleted on request, or by changed settings."""
        self.producers: list[SimProducer] = []
        self.readers: list[SimReader] = []
        self._left_to_send = 0
        self._admin_left = self.plan.admin_operations + self.plan.deletions
        self._going: dict[str, None] = {}
        """Topics that are being deleted."""
        self._admin_busy = True
        self._tags = 0
        self._records_checked = 0

    def run(self) -> Outcome:
        self.node.start()
        self.injector.watch()
        self.injector.schedule(self.plan.faults)
        self._create_topics(list(self.plan.topics))
        self._start_clients()
        self.sim.run_for(WORK_MS)
        self._settle()
        self._judge()
        return self._outcome()

    # Working

    def _client(self, name: str) -> SimClient:
        return SimClient(self.sim.network, "node", 9092, name)

    def _create_topics(self, left: list[TopicPlan]) -> None:
        if not left:
            self._administer()
            return
        topic = left.pop(0)

        def created() -> None:
            self._adopt(topic)
            self._create_topics(left)

        self.admin.create(topic.name, topic.partitions, topic.configs, created)

    def _adopt(self, topic: TopicPlan) -> None:
        (topic_id,) = self.history.topics[topic.name].ids
        assert topic_id is not None
        partitions = [TopicIdPartition(topic.name, topic_id, number) for number in range(topic.partitions)]
        self.partitions += partitions
        for reader in self.readers:
            for partition in partitions:
                reader.follow(partition)

    def _start_clients(self) -> None:
        clock = self.sim.clock
        for number, version in enumerate(self.plan.readers):
            client = self._client(f"reader{number}")
            reader = SimReader(
                client, clock, self.history, [], version=version, max_bytes=self.random.choice((1, 5_000, 1 << 20))
            )
            self.readers.append(reader)
            reader.start()
        for number, plan in enumerate(self.plan.producers):
            producer = SimProducer(
                self._client(f"producer{number}"),
                clock,
                self.history,
                Random(f"producer {number} {self.seed}"),
                acks=plan.acks,
                idempotent=plan.idempotent,
                version=plan.version,
                codec=plan.codec,
                in_flight_max=plan.in_flight_max,
            )
            self.producers.append(producer)
            self._left_to_send += plan.batches
            self._produce(producer, plan, plan.batches)

    def _produce(self, producer: SimProducer, plan: ProducerPlan, left: int) -> None:
        if not left:
            return
        partitions = self.partitions
        if self._going and not producer.uses_topic_ids:
            # A producer that uses names would silently write to the next topic of that name.
            partitions = [partition for partition in partitions if partition.topic not in self._going]
        if partitions:
            partition = self.random.choice(partitions)
            topic = self.topics[partition.topic]
            promise = Promise.SURVIVES if topic.survives else Promise.UNTIL_POWER_CUT
            if plan.acks != -1:
                promise = Promise.UNTIL_POWER_CUT if plan.acks else Promise.NOTHING
            producer.produce(partition, self._contents(producer.name, topic), promise)
            left -= 1
            self._left_to_send -= 1
        self.sim.clock.call_later(self.random.randint(0, plan.pace_ms), lambda: self._produce(producer, plan, left))

    def _contents(self, producer: str, topic: TopicPlan) -> list[Content]:
        contents = []
        for _ in range(self.random.choice((1, 1, 3, 10))):
            self._tags += 1
            key = b"k%d" % self.random.randrange(self.plan.keys)
            value: bytes | None = self.random.randbytes(self.random.randint(0, self.plan.values_bytes_max))
            if self.random.random() < 0.1:
                value = None
            contents.append(Content(f"{producer}:{self._tags}", key, value, self.sim.clock.wall_ms()))
        return contents

    def _administer(self) -> None:
        """One change at a time, with pauses."""
        self._admin_busy = self._admin_left > 0
        if not self._admin_busy:
            return
        self._admin_left -= 1
        self.sim.clock.call_later(self.random.randint(0, 2_000), self._change_something)

    def _change_something(self) -> None:
        topic = self.random.choice(list(self.topics.values()))
        mine = [partition for partition in self.partitions if partition.topic == topic.name]
        match 0 if self._admin_left < self.plan.deletions else self.random.randrange(4):
            case 0:
                self._delete_and_recreate(topic, mine)
            case 1:
                self.admin.add_partitions(topic.name, topic.partitions + 1, lambda: self._grown(topic, mine))
            case 2:
                self.limited_topics[topic.name] = None
                name, value = self.random.choice(
                    (("retention.ms", "1500"), ("segment.bytes", "20000"), ("max.message.bytes", "900"))
                )
                self.admin.set_config(topic.name, name, value, self._administer)
            case _:
                partition = self.random.choice(mine)
                self.limited_topics[topic.name] = None
                offsets = [batch.base_offset for batch in self.history.batches if batch.partition == partition]
                self.admin.delete_records(partition, max(self.random.choice(offsets or [0]), 0), self._administer)

    def _grown(self, topic: TopicPlan, mine: list[TopicIdPartition]) -> None:
        if topic.partitions + 1 in self.history.topics[topic.name].partition_counts:
            topic.partitions += 1
            # It may not exist, if the reply was lost; producers then get an error.
            if len(self.history.topics[topic.name].partition_counts) == 1:
                self.partitions.append(mine[0]._replace(partition_index=topic.partitions - 1))
        self._administer()

    def _delete_and_recreate(self, topic: TopicPlan, mine: list[TopicIdPartition]) -> None:
        self._going[topic.name] = None
        for producer in self.producers:
            if not producer.uses_topic_ids:
                producer.abandon(topic.name)
        for reader in self.readers:
            for partition in mine:
                reader.leave(partition)

        def recreate() -> None:
            self.partitions = [partition for partition in self.partitions if partition not in mine]
            del self._going[topic.name]
            for producer in self.producers:
                producer.abandon(topic.name)
            self.admin.create(topic.name, topic.partitions, topic.configs, recreated)

        def recreated() -> None:
            self._adopt(topic)
            self._administer()

        self.admin.delete(topic.name, recreate)

    # The end

    def _settle(self) -> None:
        """Heal the world, bring the node up, and let all clients finish."""
        self.injector.end()
        if self.node.is_stopping:
            self.sim.run_until(lambda: not self.node.is_up)
        if self.node.is_up and (self._has_offline_logs() or self.random.random() < 0.3):
            self.node.kill()
        self._bring_up()
        if not self._let_clients_finish():
            self._blame(f"clients were still waiting {SETTLE_MS} ms after healing")
        for producer in self.producers:
            producer.close()
        for reader in self.readers:
            reader.close()
        self.sim.run_for(100)
        if self.plan.ends_with_power_cut:
            self.injector.cut_power()
            self._bring_up()

    def _let_clients_finish(self) -> bool:
        """A failed sync of the whole file system surfaces at each file's next sync; then one more restart is due."""
        for _ in range(START_TRIES):
            self.sim.run_until(lambda: self._is_done() or self._has_offline_logs(), within_ms=SETTLE_MS)
            if not self.node.is_up or not self._has_offline_logs():
                break
            self.node.kill()
            self._bring_up()
        return self._is_done()

    def _has_offline_logs(self) -> bool:
        """A log that could not be opened or synced stays offline until the node restarts."""
        if not self.node.is_up:
            return True
        store = self.node.broker.store
        return bool(store.failed) or any(log.failed for log in store.logs.values())

    def _is_done(self) -> bool:
        return not self._left_to_send and not self._admin_busy and all(each.is_idle() for each in self.producers)

    def _bring_up(self) -> None:
        for _ in range(START_TRIES):
            if self.node.is_up or self.node.start():
                return
        self._blame(f"the node does not start on a healthy machine: {self.node.journal_lines[-1]}")

    def _blame(self, sentence: str) -> None:
        self.history.violations.append(sentence)

    # Checks

    def _judge(self) -> None:
        if not self.node.is_up:
            return
        self._judge_metadata()
        self._judge_records()
        ends = self._ends()
        self.node.stop()
        if not self.sim.run_until(lambda: not self.node.is_up, within_ms=READ_MS):
            self._blame("the node does not stop")
            return
        compacted = [topic.name for topic in self.topics.values() if topic.is_compacted]
        self.history.violations += check_folder(self.node.disk.contents(), DATA_FOLDER, compacted)
        self._bring_up()
        if self.node.is_up and self._ends() != ends:
            self._blame(f"after a clean stop logs end at {self._ends()}, not at {ends}")

    def _judge_records(self) -> None:
        auditor = SimReader(
            self._client("auditor"), self.sim.clock, self.history, self.partitions, version=16, keep=True
        )
        auditor.start()
        self.sim.run_until(auditor.is_at_end, within_ms=READ_MS)
        auditor.close()
        for partition, view in auditor.views.items():
            self.history.violations += check_partition(
                self.history, view, self._rules(partition), self.sim.clock.now_ms
            )
        self._records_checked = auditor.records_read

    def _ends(self) -> dict[str, int]:
        return {each.name.folder: each.log.end_offset for each in self.node.broker.partitions}

    def _judge_metadata(self) -> None:
        replies: list[tuple[m.MetadataResponse, m.DescribeConfigsResponse]] = []
        self.admin.describe(list(self.topics), lambda *told: replies.append(told))
        if not self.sim.run_until(lambda: bool(replies), within_ms=READ_MS):
            self._blame("the node does not answer Metadata")
            return
        self.history.violations += check_metadata(self.history, *replies[0])

    def _rules(self, partition: TopicIdPartition) -> TopicRules:
        topic = self.topics[partition.topic]
        rules = TopicRules(
            is_compacted=topic.is_compacted,
            stamps_append_time=topic.configs.get("message.timestamp.type") == "LogAppendTime",
        )
        may_go = "retention.bytes" in topic.configs or topic.name in self.limited_topics or self.injector.clock_leapt
        if not may_go:
            rules.keeps_all_ms = int(topic.configs.get("retention.ms", str(1 << 40)))
        return rules

    def story(self) -> list[str]:
        """All faults, client actions and log lines in order of time."""
        return in_order_of_time([*self.history.lines, *self.node.journal_lines])

    def _outcome(self) -> Outcome:
        disk = self.node.disk
        evidence = [*self.history.lines, *disk.trace, str(self.sim.clock.events_run), *self.history.violations]
        return Outcome(
            seed=self.seed,
            violations=self.history.violations,
            faults=self.injector.counts,
            records=self.history.counts(),
            records_checked=self._records_checked,
            starts=self.node.incarnation,
            events=self.sim.clock.events_run,
            disk_operations=disk.operations,
            virtual_ms=self.sim.clock.now_ms,
            spurious_refusals=sum(producer.spurious_refusals for producer in self.producers),
            syncs_together=sum(" sync_everything " in line for line in disk.trace),
            trace_hash=hashlib.sha256("\n".join(evidence).encode()).hexdigest(),
        )


def run_seed(seed: int) -> Outcome:
    """One run; an exception inside the broker propagates to the caller."""
    return Scenario(seed).run()
