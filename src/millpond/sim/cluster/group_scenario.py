"""One seeded run of a whole cluster with a group, and perhaps transactions.

The workers and checks are those of `sim.coordination`; the faults are those of a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from millpond.metadata.image import INTERNAL_TOPICS
from millpond.sim.clients.cluster_client import ClusterClient
from millpond.sim.clients.committed_reader import CommittedReader
from millpond.sim.clients.group_member import GroupTopic
from millpond.sim.cluster.checkers import Inspector
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.fault_injector import FaultInjector
from millpond.sim.cluster.plan import FAULTS, FaultPlan, make_plan
from millpond.sim.coordination.plan import WORK_MS, CoordinationPlan, Sharing, Work, make_coordination_plan
from millpond.sim.coordination.scenario import (
    LINGER_MS,
    OPEN_STATES,
    PREPARE_MS,
    CoordinationOutcome,
    GroupScenario,
)
from millpond.sim.coordination.topic_successor import TopicSuccessor
from millpond.sim.history.records import in_order_of_time

LOOK_MS = 50


@dataclass(slots=True)
class ClusterGroupPlan:
    """What one seed decides: the workers, the nodes, and the faults."""

    nodes: int
    work: CoordinationPlan
    node: dict[str, str]
    faults: tuple[FaultPlan, ...]
    has_racks: bool = False
    """Whether each node is in its own rack, and readers in those of two of them."""
    replaces_topic: bool = False
    """Whether a topic with committed offsets is deleted and created again all the time."""


def make_cluster_group_plan(
    seed: int,
    kinds: Sequence[str] = FAULTS,
    *,
    nodes: int | None = None,
    work: Work | None = None,
    sharing: Sharing | None = None,
) -> ClusterGroupPlan:
    """The plan of a seed, with cluster faults of these kinds only."""
    plan = make_coordination_plan(seed, (), work=work, sharing=sharing)
    hasty = Random(f"hasty crew {seed}")
    plan.workers = [replace(style, is_hasty=not style.is_v2 and hasty.random() < 0.5) for style in plan.workers]
    cluster = make_plan(seed, kinds, nodes=nodes)
    settings = {**cluster.node, **plan.node}
    replaces_topic = Random(f"topic successor {seed}").random() < 0.5
    return ClusterGroupPlan(cluster.nodes, plan, settings, cluster.faults, replaces_topic=replaces_topic)


class ClusterGroupScenario(GroupScenario):
    """A cluster and its workers from a seed. `run` runs it to its end."""

    settle_ms = 120_000
    read_ms = 60_000

    def __init__(self, seed: int, plan: ClusterGroupPlan | None = None) -> None:
        self.plan = plan or make_cluster_group_plan(seed)
        super().__init__(seed, self.plan.work, Random(f"crew {seed}"))
        self.cluster = SimCluster(
            self.sim, self.plan.nodes, self.records, self.plan.node, has_racks=self.plan.has_racks
        )
        for node in self.cluster.nodes.values():
            node.workers_delay_ms_usual = self.work_plan.disk_delay_ms
        clients = [f"hand{slot}" for slot in range(len(self.work_plan.workers))]
        self.injector = FaultInjector(self.cluster, clients, is_synced_first=False)
        self.inspector = Inspector(self.cluster, self.injector, passes_over=INTERNAL_TOPICS)
        self.reading: list[ClusterClient] = []
        self._topics: list[GroupTopic] = []
        self._successor: TopicSuccessor | None = None

    def run(self) -> CoordinationOutcome:
        self.cluster.watch()
        self._look()
        if self._prepare():
            self._start_clients()
            self.injector.schedule(self.plan.faults)
            self._work()
            self._settle()
            if not self._has_failed():
                self._check()
        self.history.violations += self.records.violations
        starts = sum(node.incarnation for node in self.cluster.nodes.values())
        return self._outcome(dict(self.injector.counts), starts, self.story())

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
        """Start the cluster and fill the input."""
        if not self.sim.run_until(self._is_founded, within_ms=PREPARE_MS):
            self._blame("the cluster does not start")
            return False
        self._create_topics()
        is_filled = self._fill_input()
        if not is_filled:
            self._blame("the input cannot be filled")
        return is_filled

    def _is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def _create(
        self, name: str, partitions: int, configs: dict[str, str] | None = None, replication_factor: int = 1
    ) -> GroupTopic:
        factor = min(3, self.plan.nodes)
        # Clocks of nodes jump and those of clients do not: the broker would reject their timestamps for good.
        configs = {"min.insync.replicas": str(min(2, factor)), "message.timestamp.after.max.ms": str(1 << 62)}
        topic = super()._create(name, partitions, configs, factor)
        self._topics.append(topic)
        return topic

    def _start_clients(self) -> None:
        self._start_workers()
        if self.plan.replaces_topic:
            self._replace_topic()
        if self.work_plan.work is Work.COPY:
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
        """Kill it, unless another node is down already."""
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
        return self._start_reader(client, version=version, max_bytes=max_bytes)

    # The end

    def _settle(self) -> None:
        """Heal the world and let the workers finish."""
        assert self.workers is not None
        self.injector.end()
        self.workers.calm_down()
        if self._successor is not None:
            self._successor.calm_down()
        self._finish_work()
        if self._successor is not None:
            self._successor.stop()
        self.sim.run_for(LINGER_MS)
        for reader in self.readers:
            reader.close()

    def _check_states(self) -> None:
        for node_id, node in self.cluster.running():
            for shard_host in node.broker.transactions.shard_hosts():
                for each in shard_host.shard.transactions.values():
                    if each.state.label in OPEN_STATES:
                        self._blame(f"{each.transactional_id} is still in state {each.state.label} at node {node_id}")
            for group_shard_host in node.broker.groups.shard_hosts():
                if group_shard_host.shard.offsets.pending:
                    self._blame(f"offsets wait for a transaction: {group_shard_host.shard.offsets.pending}")

    def story(self) -> list[str]:
        """All faults, client actions and log lines in order of time."""
        journals = [line for node in self.cluster.nodes.values() for line in node.journal_lines]
        return in_order_of_time([*self.records.lines, *self.history.lines, *journals])
