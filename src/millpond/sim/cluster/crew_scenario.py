"""One seeded run of a whole cluster with a group, and perhaps transactions: work in trouble, heal, finish, judge.

The crew and what it is judged by are those of `sim.coordination`; the faults are those of a cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from millpond.metadata.image import INTERNAL_TOPICS
from millpond.sim.admin import SimAdmin
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.committed_reader import CommittedReader
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.clients.group_reader import fetch_offsets
from millpond.sim.clients.producer import SimProducer
from millpond.sim.clients.script import Player, Rest, Script
from millpond.sim.cluster.checkers import Inspector
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.plan import FAULTS, FaultPlan, make_plan
from millpond.sim.cluster.trouble import Trouble
from millpond.sim.coordination.checkers import check_copied, check_processed, check_sightings, check_transactions
from millpond.sim.coordination.crew import GROUP, Crew
from millpond.sim.coordination.plan import WORK_MS, CoordinationPlan, Sharing, Work, make_coordination_plan
from millpond.sim.coordination.topic_successor import TopicSuccessor
from millpond.sim.history.groups import CoordinationHistory
from millpond.sim.history.records import Content, History, Promise, TopicIdPartition, in_order_of_time
from millpond.sim.world.world import SimWorld

LOOK_MS = 50
PREPARE_MS = 60_000
SETTLE_MS = 120_000
READ_MS = 60_000
LINGER_MS = 7_000
"""After the work is done: long enough for every late request to come and for every transaction to time out."""
OBSERVE_MS = 250


@dataclass(slots=True)
class CrewPlan:
    """What one seed decides: the crew and its work, the nodes and what goes wrong with them."""

    nodes: int
    crew: CoordinationPlan
    node: dict[str, str]
    faults: tuple[FaultPlan, ...]
    has_racks: bool = False
    """Whether each node is in a rack of its own, and readers in those of two of them."""
    replaces_topic: bool = False
    """Whether a topic with committed offsets is deleted and created again all the time."""


def make_crew_plan(
    seed: int,
    kinds: Sequence[str] = FAULTS,
    *,
    nodes: int | None = None,
    work: Work | None = None,
    sharing: Sharing | None = None,
) -> CrewPlan:
    """The plan of a seed; faults of the cluster are of these kinds only."""
    crew = make_coordination_plan(seed, (), work=work, sharing=sharing)
    hasty = Random(f"hasty crew {seed}")
    crew.crew = [replace(style, is_hasty=not style.is_v2 and hasty.random() < 0.5) for style in crew.crew]
    cluster = make_plan(seed, kinds, nodes=nodes)
    settings = {**cluster.node, **crew.node}
    replaces_topic = Random(f"topic successor {seed}").random() < 0.5
    return CrewPlan(cluster.nodes, crew, settings, cluster.faults, replaces_topic=replaces_topic)


@dataclass(slots=True)
class CrewOutcome:
    """What one run came to."""

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    lives: int = 0
    events: int = 0
    virtual_ms: int = 0
    trace_hash: str = ""


class CrewScenario:
    """A cluster and its crew from a seed. `run` plays it to its end."""

    def __init__(self, seed: int, plan: CrewPlan | None = None) -> None:
        self.seed = seed
        self.plan = plan or make_crew_plan(seed)
        self.sim = SimWorld(seed)
        self.random = Random(f"crew {seed}")
        self.records = History()
        self.cluster = SimCluster(
            self.sim, self.plan.nodes, self.records, self.plan.node, has_racks=self.plan.has_racks
        )
        for node in self.cluster.nodes.values():
            node.workers_delay_ms_usual = self.plan.crew.disk_delay_ms
        self.history = CoordinationHistory(is_one_kind=self.plan.crew.sharing is not Sharing.MIXED)
        clients = [f"hand{slot}" for slot in range(len(self.plan.crew.crew))]
        self.trouble = Trouble(self.cluster, clients, is_synced_first=False)
        self.inspector = Inspector(self.cluster, self.trouble, passes_over=INTERNAL_TOPICS)
        self.readers: list[CommittedReader] = []
        self.reading: list[ClusterClient] = []
        self.ends: dict[int, int] = {}
        self._topics: list[GroupTopic] = []
        self._observer: Player | None = None
        self._successor: TopicSuccessor | None = None

    def run(self) -> CrewOutcome:
        self.cluster.watch()
        self._look()
        if self._prepare():
            self._start_clients()
            self.trouble.schedule(self.plan.faults)
            self._work()
            self._settle()
            if not self._has_failed():
                self._judge()
        self.history.violations += self.records.violations
        return self._outcome()

    def _work(self) -> None:
        self.sim.run_until(self._has_failed, within_ms=WORK_MS)

    def _look(self) -> None:
        self.inspector.look()
        self.sim.clock.call_later(LOOK_MS, self._look)

    # Before anything goes wrong

    def _client(self, name: str, rack: str = "") -> ClusterClient:
        client = ClusterClient(self.sim.network, self.cluster.nodes, name, Random(f"{name} {self.seed}"), rack=rack)
        for topic in self._topics:
            client.expect(topic.name, topic.id)
        return client

    def _prepare(self) -> bool:
        """Found the cluster and fill the input."""
        if not self.sim.run_until(self._is_founded, within_ms=PREPARE_MS):
            self._blame("the cluster is not founded")
            return False
        self.input = self._create("input", self.plan.crew.input_partitions)
        self.output = self._create("output", self.plan.crew.output_partitions)
        producer = SimProducer(self._client("filler"), self.sim.clock, self.records, Random(f"filler {self.seed}"))
        tags = 0
        for partition, count in self.plan.crew.batches:
            contents = [Content(f"{tags + number}", None, b"", self.sim.clock.wall_ms()) for number in range(count)]
            tags += count
            producer.produce(TopicIdPartition("input", self.input.id, partition), contents, Promise.SURVIVES)
        is_filled = self.sim.run_until(producer.is_idle, within_ms=PREPARE_MS)
        producer.close()
        if not is_filled:
            self._blame("the input cannot be filled")
        self.ends = {
            number: sum(count for partition, count in self.plan.crew.batches if partition == number)
            for number in range(self.input.partitions)
        }
        return is_filled

    def _is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def _create(self, name: str, partitions: int) -> GroupTopic:
        done: list[None] = []
        admin = SimAdmin(self._client("admin"), self.sim.clock, self.records)
        factor = min(3, self.plan.nodes)
        # Clocks of nodes jump, those of clients do not: their stamps would be refused for good.
        configs = {"min.insync.replicas": str(min(2, factor)), "message.timestamp.after.max.ms": str(1 << 62)}
        admin.create(name, partitions, configs, lambda: done.append(None), replication_factor=factor)
        assert self.sim.run_until(lambda: bool(done), within_ms=PREPARE_MS), f"{name} cannot be created"
        (topic_id,) = self.records.topics[name].ids
        assert topic_id is not None
        topic = GroupTopic(name, topic_id, partitions)
        self._topics.append(topic)
        return topic

    def _start_clients(self) -> None:
        plan = self.plan.crew
        self.crew = Crew(
            plan, self.sim.clock, self._client, self.history, self.input, self.output, self.random, self.seed
        )
        self.crew.start()
        self._observer = Player(self.sim.clock, self._observe())
        self._observer.start()
        if self.plan.replaces_topic:
            self._replace_topic()
        if plan.work is Work.COPY:
            near, far = ("node1", "node2") if self.plan.has_racks else ("", "")
            self.readers = [
                self._reader("reader", version=11, rack=near),
                self._reader("reader by id", version=16, max_bytes=1, rack=far),
            ]

    def _replace_topic(self) -> None:
        self._successor = TopicSuccessor(
            self.sim.clock,
            self._client("successor"),
            self.history,
            Random(f"successor {self.seed}"),
            replication_factor=min(3, self.plan.nodes),
            strike=self._kill_coordinator,
        )
        self._successor.start()

    def _kill_coordinator(self, group_id: str) -> None:
        """Unless something is wrong with some node already."""
        running = dict(self.cluster.running())
        if len(running) < len(self.cluster.nodes):
            return
        for node_id, node in running.items():
            groups = node.broker.groups
            if groups.is_open and groups.leads(group_id):
                self.cluster.kill(node_id)
                return

    def _reader(self, name: str, *, version: int, max_bytes: int = 1 << 20, rack: str = "") -> CommittedReader:
        client = self._client(name, rack)
        self.reading.append(client)
        reader = CommittedReader(
            self.sim.clock, client, self.history, self.output, version=version, max_bytes=max_bytes
        )
        reader.start()
        return reader

    def _observe(self) -> Script[None]:
        """Look from outside, again and again, how far the group says it is."""
        client = self._client("observer")
        history, clock = self.history, self.sim.clock

        def told(asked_ms: int, partition: int, offset: int) -> None:
            if self.plan.crew.work is Work.READ:
                history.told_offset(clock.now_ms, asked_ms, client.name, partition, offset)
            else:
                history.told_pending_offset(clock.now_ms, client.name, partition, offset)

        while True:
            yield from fetch_offsets(client, clock, GROUP, self.input, self.ends, told, require_stable=False)
            yield Rest(OBSERVE_MS)

    # The end

    def _settle(self) -> None:
        """Heal the world and let everybody finish."""
        self.trouble.end()
        self.crew.calm_down()
        if self._successor is not None:
            self._successor.calm_down()
        if not self.sim.run_until(lambda: self._is_done() or self._has_failed(), within_ms=SETTLE_MS):
            self._blame(f"the group reached {self.history.reached} of {self.ends} in {SETTLE_MS} ms of peace")
        self.sim.run_for(OBSERVE_MS)
        self.crew.stop()
        assert self._observer is not None
        self._observer.end()
        if self._successor is not None:
            self._successor.stop()
        self.sim.run_for(LINGER_MS)
        for reader in self.readers:
            reader.close()

    def _has_failed(self) -> bool:
        return bool(self.history.violations or self.records.violations)

    def _is_done(self) -> bool:
        return all(max(self.history.reached.get(partition, 0), 0) >= end for partition, end in self.ends.items())

    def _blame(self, finding: str) -> None:
        self.history.blame(self.sim.clock.now_ms, finding)

    # Judging

    def _judge(self) -> None:
        if self.plan.crew.work is Work.READ:
            self._found(check_processed(self.history, self.ends))
            return
        final = self._reader("auditor", version=16)
        if not self.sim.run_until(final.is_at_end, within_ms=READ_MS):
            views = {number: (view.last_stable_offset, view.high_watermark) for number, view in final.views.items()}
            self._blame(f"a transaction hangs: the output is stable up to, and ends at, {views}")
        final.close()
        self._judge_states()
        self._found(check_copied(self.ends, final.shown, min(2, self.output.partitions)))
        self._found(check_transactions(self.history, final.shown))
        for reader in self.readers:
            self._found(check_sightings(self.history, reader.shown, final.shown))

    def _found(self, findings: Iterable[str]) -> None:
        self.history.violations += findings

    def _judge_states(self) -> None:
        """No transaction is open, and none has offsets that wait."""
        for node_id, node in self.cluster.running():
            for shard_host in node.broker.transactions.shard_hosts():
                for each in shard_host.shard.transactions.values():
                    if each.state.label in ("Ongoing", "PrepareCommit", "PrepareAbort"):
                        self._blame(f"{each.transactional_id} is still in state {each.state.label} at node {node_id}")
            for group_shard_host in node.broker.groups.shard_hosts():
                if group_shard_host.shard.offsets.pending:
                    self._blame(f"offsets wait for a transaction: {group_shard_host.shard.offsets.pending}")

    # What it came to

    def story(self) -> list[str]:
        """What happened, in order: faults, lives, what the crew did and heard, what nodes said."""
        journals = [line for node in self.cluster.nodes.values() for line in node.journal_lines]
        return in_order_of_time([*self.records.lines, *self.history.lines, *journals])

    def _outcome(self) -> CrewOutcome:
        evidence = [*self.story(), str(self.sim.clock.events_run), *self.history.violations]
        plan = self.plan.crew
        counts = {f"{plan.work.value}, {plan.sharing.value}": 1, **self.history.counts}
        counts["records of the input"] = sum(self.ends.values())
        counts["records processed"] = sum(self.history.processed.values())
        faults = {**self.trouble.counts, **(self.crew.counts if hasattr(self, "crew") else {})}
        return CrewOutcome(
            seed=self.seed,
            violations=self.history.violations,
            faults=faults,
            counts=counts,
            lives=sum(node.lives for node in self.cluster.nodes.values()),
            events=self.sim.clock.events_run,
            virtual_ms=self.sim.clock.now_ms,
            trace_hash=hashlib.sha256("\n".join(evidence).encode()).hexdigest(),
        )
