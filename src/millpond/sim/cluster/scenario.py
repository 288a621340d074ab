"""One seeded run of a cluster: clients work under faults, then everything heals, is read back and checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from random import Random

from millpond.sim.admin import SimAdmin
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.cluster_reader import ClusterReader
from millpond.sim.clients.producer import SimProducer
from millpond.sim.cluster.checkers import Inspector
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.fault_injector import FaultInjector
from millpond.sim.cluster.plan import WORK_MS, Plan, ProducerPlan, TopicPlan, make_plan
from millpond.sim.history.records import Content, History, Promise, TopicIdPartition, in_order_of_time
from millpond.sim.records.checkers import TopicRules, check_metadata, check_partition
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

LOOK_MS = 50
EXTRA = "extra"
FOUND_MS = 30_000
"""How long a cluster may take to start and create its topics."""
SETTLE_MS = 60_000
READ_MS = 60_000


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
    looks: int = 0
    healed_ms: int = -1
    virtual_ms: int = 0
    spurious_refusals: int = 0
    trace_hash: str = ""


class Scenario:
    """A cluster from a seed. `run` runs it to its end."""

    rules = TopicRules()
    """What the records of its topics survive."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan or make_plan(seed)
        self.sim = SimWorld(seed)
        self.history = History()
        self.cluster = SimCluster(
            self.sim, self.plan.nodes, self.history, self.plan.node, has_racks=self.plan.has_racks
        )
        for node in self.cluster.nodes.values():
            node.workers_delay_ms_usual = self.plan.disk_delay_ms
        self.random = Random(f"cluster scenario {seed}")
        clients = [*(f"producer{each}" for each in range(len(self.plan.producers)))]
        clients += [f"reader{each}" for each in range(len(self.plan.readers))]
        self._is_synced_first = all(topic.configs.get("flush.ack") == "always" for topic in self.plan.topics)
        """Whether all disks may lose unflushed data at once; later topics must then flush first, too."""
        self.injector = FaultInjector(self.cluster, clients, is_synced_first=self._is_synced_first)
        self.inspector = Inspector(self.cluster, self.injector)
        self.partitions: list[TopicIdPartition] = []
        self.producers: list[SimProducer] = []
        self.readers: list[ClusterReader] = []
        self.admin = SimAdmin(self._client("admin"), self.sim.clock, self.history)
        self._admin_left = 0
        self._extra = 0
        self._left_to_send = 0
        self._tags = 0
        self._records_checked = 0
        self._healed_ms = -1
        self._is_settling = self._is_healed = False

    def run(self) -> Outcome:
        self.cluster.watch()
        self._look()
        if self._found():
            self._start_clients()
            self._administer(self.plan.admin_operations)
            self.injector.schedule(self.plan.faults)
            self.sim.run_for(WORK_MS)
            self.injector.end()
            self._settle()
            self._judge()
        return self._outcome()

    def _look(self) -> None:
        self.inspector.look()
        if self._is_settling:
            self._is_healed = next(self.inspector.check_healed(), None) is None
        self.sim.clock.call_later(LOOK_MS, self._look)

    def _has_rot(self) -> bool:
        return self.injector.rot is not None

    # Working

    def _client(self, name: str, rack: str = "") -> ClusterClient:
        return ClusterClient(self.sim.network, self.cluster.nodes, name, Random(f"{name} {self.seed}"), rack=rack)

    def _rack(self, number: int) -> str:
        """The rack of a reader, if the nodes have racks."""
        return f"node{1 + (self.seed + number) % self.plan.nodes}" if self.plan.has_racks else ""

    def _found(self) -> bool:
        """Start the cluster and create its topics, before any fault."""
        if not self._wait_for(self._is_founded):
            self._blame("the cluster does not start")
            return False
        for topic in self.plan.topics:
            created: list[None] = []
            self.admin.create(
                topic.name,
                topic.partitions,
                topic.configs,
                lambda created=created: created.append(None),  # type: ignore[misc]
                replication_factor=topic.replication_factor,
            )
            if not self._wait_for(lambda created=created: bool(created)):
                self._blame(f"{topic.name} cannot be created")
                return False
            self._adopt(topic)
        return True

    def _wait_for(self, condition: object) -> bool:
        assert callable(condition)
        return self.sim.run_until(condition, within_ms=FOUND_MS)

    def _is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def _adopt(self, topic: TopicPlan) -> None:
        (topic_id,) = self.history.topics[topic.name].ids
        assert topic_id is not None
        self.partitions += [TopicIdPartition(topic.name, topic_id, index) for index in range(topic.partitions)]

    def _start_clients(self) -> None:
        clock = self.sim.clock
        for number, version in enumerate(self.plan.readers):
            reader = ClusterReader(
                self._client(f"reader{number}", self._rack(number)),
                clock,
                self.history,
                version=version,
                may_read_corruption=self._has_rot,
            )
            self.readers.append(reader)
            reader.follow(self.partitions)
        for number, plan in enumerate(self.plan.producers):
            client = self._client(f"producer{number}")
            for partition in self.partitions:
                client.expect(partition.topic, partition.topic_id)
            producer = SimProducer(
                client,
                clock,
                self.history,
                Random(f"producer {number} {self.seed}"),
                version=plan.version,
                in_flight_max=plan.in_flight_max,
            )
            self.producers.append(producer)
            self._left_to_send += plan.batches
            self._produce(producer, plan, plan.batches, Random(f"work {number} {self.seed}"))

    def _produce(self, producer: SimProducer, plan: ProducerPlan, left: int, random: Random) -> None:
        if not left:
            return
        producer.produce(random.choice(self.partitions), self._contents(producer.name, random), Promise.SURVIVES)
        self._left_to_send -= 1
        self.sim.clock.call_later(
            random.randint(1, 2 * plan.pace_ms), lambda: self._produce(producer, plan, left - 1, random)
        )

    def _contents(self, producer: str, random: Random) -> list[Content]:
        contents = []
        for _ in range(random.choice((1, 1, 3))):
            self._tags += 1
            key, value = b"k%d" % random.randrange(10), random.randbytes(random.randint(0, 200))
            contents.append(Content(f"{producer}:{self._tags}", key, value, self.sim.clock.wall_ms()))
        return contents

    def _administer(self, left: int) -> None:
        """One change at a time, with pauses: topics are created and deleted, records are deleted."""
        self._admin_left = left
        if left:
            self.sim.clock.call_later(self.random.randint(0, 800), lambda: self._change_something(left - 1))

    def _change_something(self, left: int) -> None:
        extra = [name for name in self.history.topics if name.startswith(EXTRA) and self._is_there(name)]
        kind = self.random.randrange(4)

        def then() -> None:
            self._administer(left)

        if kind == 0 and extra:
            self.admin.delete(self.random.choice(extra), then)
        elif kind == 1 and extra:
            name = self.random.choice(extra)
            self.admin.add_partitions(name, max(self.history.topics[name].partition_counts) + 1, then)
        elif kind == 2:
            partition = self.random.choice(self.partitions)
            offsets = [batch.base_offset for batch in self.history.batches if batch.partition == partition]
            self.admin.delete_records(partition, max(self.random.choice(offsets or [0]), 0), then)
        else:
            self._extra += 1
            factor = min(self.plan.nodes, 3)
            # Names are reused: leftovers of the old topic must not be taken for the new one.
            name = f"{EXTRA}{self._extra % 3}"
            if name in extra:
                then()
            else:
                configs = {"flush.ack": "always"} if self._is_synced_first else {}
                self.admin.create(name, self.random.randint(1, 3), configs, then, replication_factor=factor)

    def _is_there(self, name: str) -> bool:
        return None not in self.history.topics[name].ids

    # The end

    def _settle(self) -> None:
        """Let all clients finish and the cluster recover."""
        began_ms = self.sim.clock.now_ms
        if not self.sim.run_until(self._is_done, within_ms=SETTLE_MS):
            waiting = [producer.name for producer in self.producers if not producer.is_idle()]
            self._blame(f"{waiting or 'clients'} still wait {SETTLE_MS} ms after healing")
        self._is_settling = True
        if self.sim.run_until(lambda: self._is_healed, within_ms=SETTLE_MS):
            self._healed_ms = self.sim.clock.now_ms - began_ms
        else:
            self.history.violations += self.inspector.check_healed()
        self._is_settling = False
        for producer in self.producers:
            producer.close()

    def _is_done(self) -> bool:
        return not self._left_to_send and not self._admin_left and all(each.is_idle() for each in self.producers)

    def _judge(self) -> None:
        for producer in self.producers:
            if producer.sequence_gaps:
                self._blame(
                    f"{producer.name} got OUT_OF_ORDER_SEQUENCE_NUMBER though all earlier batches are acknowledged"
                )
        for reader in self.readers:
            if not self.sim.run_until(reader.is_at_end, within_ms=READ_MS):
                self._blame(f"{reader.name} does not reach the end")
            reader.close()
        # Corrupt batches are repaired by now: it must not read any.
        auditor = ClusterReader(self._client("auditor"), self.sim.clock, self.history, version=16, keep=True)
        auditor.follow(self.partitions)
        self.sim.run_until(auditor.is_at_end, within_ms=READ_MS)
        auditor.close()
        for view in auditor.views.values():
            self.history.violations += check_partition(self.history, view, self.rules, self.sim.clock.now_ms)
            requested_offset = self.history.requested_deletes.get(view.partition, 0)
            if view.start_offset > requested_offset:
                self._blame(
                    f"{view.partition} begins at {view.start_offset}, no one deleted beyond {requested_offset}"
                )
        self._records_checked = auditor.records_read
        self._judge_metadata()
        self.inspector.look(at_all=True)
        self.history.violations += [*self.inspector.check_epochs(), *self.inspector.check_truncations()]

    def _judge_metadata(self) -> None:
        replies: list[tuple[m.MetadataResponse, m.DescribeConfigsResponse]] = []
        self.admin.describe(list(self.history.topics), lambda *told: replies.append(told))
        if not self.sim.run_until(lambda: bool(replies), within_ms=READ_MS):
            self._blame("no node answers Metadata")
            return
        self.history.violations += check_metadata(self.history, *replies[0])

    def _blame(self, sentence: str) -> None:
        self.history.violations.append(sentence)

    # Result

    def story(self) -> list[str]:
        """All faults, client actions and log lines in order of time."""
        journals = [line for node in self.cluster.nodes.values() for line in node.journal_lines]
        return in_order_of_time([*self.history.lines, *journals])

    def _outcome(self) -> Outcome:
        evidence = [*self.story(), str(self.sim.clock.events_run), *self.history.violations]
        return Outcome(
            seed=self.seed,
            violations=self.history.violations,
            faults=self.injector.counts,
            records=self.history.counts(),
            records_checked=self._records_checked,
            starts=sum(node.incarnation for node in self.cluster.nodes.values()),
            events=self.sim.clock.events_run,
            looks=self.inspector.looks,
            healed_ms=self._healed_ms,
            virtual_ms=self.sim.clock.now_ms,
            spurious_refusals=sum(producer.spurious_refusals for producer in self.producers),
            trace_hash=hashlib.sha256("\n".join(evidence).encode()).hexdigest(),
        )


def run_seed(seed: int) -> Outcome:
    """One run; an exception inside a node propagates to the caller."""
    return Scenario(seed).run()
