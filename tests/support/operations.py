"""Operations on a cluster in use: it grows, shrinks, loses a machine, is upgraded, and its topics move.

Every operation is the command that an operator types, or a signal to a process; clients work meanwhile
(`cluster_clients`) and are checked at the end. After each phase the cluster is healthy: every node answers, every
partition has a leader, and every replica is in sync.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millpond.admin.balance import shares
from millpond.admin.features import describe_features
from millpond.admin.members import describe_members
from millpond.admin.moves import moves_under_way, read_placement
from millpond.admin.nodes import NodeFacts, describe_nodes
from millpond.admin.restart import restart_nodes, restart_order, wait_until_healthy
from millpond.remote.cluster import Cluster
from support.cluster_clients import TOPIC, ClusterClients, Load, Outcome
from support.up_nodes import Stand, UpNodes

QUIET_SECONDS: Final = 8.0
FOUNDERS: Final = 3
BALLAST: Final = "ballast"
BALLAST_PARTITIONS: Final = 6
BALLAST_RECORDS: Final = 6
BALLAST_RECORD_BYTES: Final = 500_000
SLOW_RATE: Final = "2MB/s"
"""Slow enough that moves take a while."""

WELL_SECONDS_MAX: Final = 90.0
DEAD_SECONDS: Final = (1.0, 2.5)


@dataclass(frozen=True)
class Phase:
    """The effect of one operation on writers."""

    name: str
    seconds: float
    latencies: Sequence[float] = field(repr=False)
    """From `produce()` to the acknowledgement of every replica, in seconds."""

    stand: Stand
    """The longest stall of a node."""

    def percentile(self, share: float) -> float:
        values = sorted(self.latencies)
        return values[min(int(len(values) * share), len(values) - 1)]


Tell = Callable[[str], None]


class Operations:
    """A cluster with clients, and the operations on it."""

    def __init__(self, nodes: UpNodes, clients: ClusterClients, dice: random.Random, tell: Tell) -> None:
        self.nodes = nodes
        self._clients = clients
        self._dice = dice
        self._tell = tell

    @contextmanager
    def _way(self) -> Iterator[Cluster]:
        with Cluster({"bootstrap.servers": self.nodes.bootstrap, "default.api.timeout.ms": "30000"}) as way:
            yield way

    @property
    def _running(self) -> list[int]:
        return [number for number, node in self.nodes.nodes.items() if node.is_running]

    def run(self, name: str) -> Phase:
        """Run one phase, until the cluster is healthy again and writes resume."""
        if name in NEED_SPARE and len(self._running) <= FOUNDERS:
            self._tell("one more node joins first")
            self.nodes.join()
            self._until_whole()
        self._clients.take_latencies()
        stands = self.nodes.stands()
        began = time.monotonic()
        PHASES[name](self)
        self._until_whole()
        self._clients.wait_for_writes(self.nodes.story)
        new = [each for path, found in self.nodes.stands().items() for each in found[len(stands.get(path, ())) :]]
        longest = max(new, default=Stand(0, 0))
        return Phase(name, time.monotonic() - began, self._clients.take_latencies(), longest)

    def _until_whole(self) -> None:
        with self._way() as way:
            wait_until_healthy(way, self._running, WELL_SECONDS_MAX)

    # The phases.

    def be_quiet(self) -> None:
        time.sleep(QUIET_SECONDS)

    def join(self) -> None:
        """A machine is added, and gets its share."""
        node = self.nodes.join()
        self._tell(f"node {node.name} has joined")
        self.nodes.command("cluster", "balance", "--yes", "--measure", "0s")
        with self._way() as way:
            replicas = {number: each.replicas for number, each in shares(read_placement(way)).items()}
        self._tell(f"replicas by node: {replicas}")
        assert max(replicas.values()) - min(replicas.values()) <= 1, replicas

    def drain(self) -> None:
        """A running machine is drained, stopped and removed."""
        number = self._dice.choice(self._running)
        self.nodes.command("node", "drain", str(number), "--yes")
        self._tell(f"node {number} is drained")
        self.nodes.nodes[number].stop()
        self._remove(number)

    def replace(self) -> None:
        """A machine is lost for good, and another one takes its place."""
        number = self._dice.choice(self._running)
        self.nodes.wipe(number)
        self._tell(f"node {number} was killed, its folder deleted")
        node = self.nodes.join()
        self._tell(f"node {node.name} has joined")
        self.nodes.command("node", "drain", str(number), "--yes")
        self._remove(number)

    def _remove(self, number: int) -> None:
        with self._way() as way:
            _within(WELL_SECONDS_MAX, lambda: number not in _there(way), f"node {number} is missed")
        self.nodes.command("node", "remove", str(number), "--yes")
        self.nodes.forget(number)
        with self._way() as way:
            # The node that is asked may learn of it a moment after the controller.
            _within(WELL_SECONDS_MAX, lambda: number not in _members(way), f"node {number} is forgotten")
            _within(WELL_SECONDS_MAX, lambda: sum(_members(way).values()) >= FOUNDERS, "three nodes vote")
        self._tell(f"node {number} is removed")

    def restart(self) -> None:
        """All nodes, one after the other, the controller last."""
        with self._way() as way:
            facts = describe_nodes(way)
            restart_nodes(way, restart_order(facts), self._running, self._restart_node, self._tell, WELL_SECONDS_MAX)

    def _restart_node(self, facts: NodeFacts) -> None:
        node = self.nodes.nodes[facts.node_id]
        node.stop()
        node.source = None
        node.start()

    def upgrade(self) -> None:
        """From the previous version to this one, node by node; then the feature levels are raised."""
        assert all(node.source is not None for node in self.nodes.nodes.values()), "they run this version already"
        self.restart()
        with self._way() as way:
            before = {each.name: each.final for each in describe_features(way)}
        # A node that an older controller registered reports its supported features to the next one, after a moment.
        _within(WELL_SECONDS_MAX, self._raise_levels, "the levels are raised")
        with self._way() as way:
            after = {each.name: each.final for each in describe_features(way)}
        raised = [
            f"{name} {before.get(name, 0)} to {level}" for name, level in after.items() if level != before[name]
        ]
        assert raised, after
        self._tell(f"raised: {', '.join(raised)}")

    def _raise_levels(self) -> bool:
        process = self.nodes.begin("cluster", "upgrade", "--yes")
        process.communicate()
        return process.returncode == 0

    def change_factor(self) -> None:
        """Three replicas of each partition, then two, then three."""
        for factor in (2, 3):
            self.nodes.command("topic", "replicas", TOPIC, "--factor", str(factor), "--yes")
            with self._way() as way:
                _within(WELL_SECONDS_MAX, lambda: _factors(way) == {factor}, f"{factor} replicas")  # noqa: B023
            self._tell(f"{TOPIC} has {factor} replicas of each partition")

    def move_while_a_leader_dies(self) -> None:
        """Partitions move to other nodes; a node that leads some of them is killed meanwhile, and returns."""
        with self._way() as way:
            victim = way.topics([TOPIC])[TOPIC].partitions[0].leader
            rest = [number for number in self._running if number != victim]
            targets = {BALLAST: self._some_of(rest), TOPIC: self._some_of([*rest[1:], victim])}
            slow = ("topic", "move", BALLAST, "--to", targets[BALLAST], "--rate", SLOW_RATE, "--yes")
            moving = self.nodes.begin(*slow)
            _within(WELL_SECONDS_MAX, lambda: bool(moves_under_way(way)), "partitions move")
        quick = ("topic", "move", TOPIC, "--to", targets[TOPIC], "--yes")
        also_moving = self.nodes.begin(*quick)
        time.sleep(self._dice.uniform(0.5, 1.5))
        self.nodes.nodes[victim].kill()
        self._tell(
            f"node {victim} was killed while {BALLAST} goes to {targets[BALLAST]} and {TOPIC} to {targets[TOPIC]}"
        )
        time.sleep(self._dice.uniform(*DEAD_SECONDS))
        self.nodes.nodes[victim].start()
        self.nodes.output_of(also_moving, *quick)
        self.nodes.output_of(moving, *slow)
        with self._way() as way:
            for topic, target in targets.items():
                wanted = tuple(map(int, target.split(",")))
                placed = {each.replicas for each in way.topics([topic])[topic].partitions.values()}
                assert placed == {wanted}, (topic, placed, wanted)
        self._tell("they are where they should be")

    def _some_of(self, numbers: Sequence[int]) -> str:
        return ",".join(map(str, self._dice.sample(list(numbers), FOUNDERS)))


def _within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true that {what}"
        time.sleep(0.1)


def _members(way: Cluster) -> dict[int, bool]:
    """All nodes that the cluster knows, and whether they vote."""
    return {each.node_id: each.is_voter for each in describe_members(way).nodes}


def _there(way: Cluster) -> set[int]:
    return {each.node_id for each in describe_members(way).nodes if each.is_there}


def _factors(way: Cluster) -> set[int]:
    return {len(each.replicas) for each in way.topics([TOPIC])[TOPIC].partitions.values()}


PHASES: Final[Mapping[str, Callable[[Operations], None]]] = {
    "quiet": Operations.be_quiet,
    "upgrade": Operations.upgrade,
    "join": Operations.join,
    "drain": Operations.drain,
    "replace": Operations.replace,
    "restart": Operations.restart,
    "factor": Operations.change_factor,
    "leader dies": Operations.move_while_a_leader_dies,
}
NEED_SPARE: Final = ("drain", "leader dies")
"""Phases that need a fourth node."""


def run(
    folder: Path,
    phases: Sequence[str],
    seed: int,
    load: Load,
    options: Sequence[str],
    old_source: Path | None,
    tell: Tell,
) -> tuple[list[Phase], Outcome]:
    """Start a cluster, of the previous version if there is one to upgrade from; then run the phases in this order."""
    nodes = UpNodes(folder, options)
    done: list[Phase] = []
    try:
        nodes.found(FOUNDERS, old_source)
        tell(f"{FOUNDERS} nodes run{'' if old_source is None else ' the version before'}")
        nodes.create_topic(BALLAST, BALLAST_PARTITIONS)
        for index in range(BALLAST_PARTITIONS):
            nodes.produce(
                BALLAST, *(os.urandom(BALLAST_RECORD_BYTES) for _ in range(BALLAST_RECORDS)), partition=index
            )
        clients = ClusterClients(nodes, folder, load)
        operations = Operations(nodes, clients, random.Random(seed), tell)
        began = time.monotonic()
        clients.start()
        try:
            clients.wait_for_writes(nodes.story)
            for name in phases:
                phase = operations.run(name)
                done.append(phase)
                tell(f"{name}: {phase.seconds:.1f} s, p99 {1000 * phase.percentile(0.99):.0f} ms")
            clients.judge()
        finally:
            clients.stop()
        clients.outcome.seconds = time.monotonic() - began
        return done, clients.outcome
    except BaseException:
        print(nodes.story(), flush=True)
        raise
    finally:
        nodes.close()
