"""A cluster that has grown from one node, whose voters change under faults.

Node 1 starts alone and the others join it. Later an administrator drains nodes and undoes it, so that others vote in
their place, adds and removes voters, and unregisters nodes that are down and come back later. After healing all
nodes must have the same voters, and one of these must lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from millpond.config.node import BROKER_DRAINED, CLUSTER_CONTACTS, CLUSTER_NODES, node_settings
from millpond.sim.cluster.checkers import NOT_HEALED, Inspector
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.cluster.fault_injector import FaultInjector
from millpond.sim.cluster.plan import FAULTS, WORK_MS, Plan, make_plan
from millpond.sim.cluster.scenario import Scenario
from millpond.sim.node import PORT
from millpond.wire import messages as m

PAUSES_MS = (100, 500, 2_000)
AWAY_MS = 4_000
"""How long a node is down before it is unregistered: its session ends in that time."""
BROKER_RESOURCE = 4
VOTERS_MIN = 3
KEPT = ("default.replication.factor", "min.insync.replicas")


def make_members_plan(seed: int | str, kinds: Sequence[str] = FAULTS) -> Plan:
    """Like any other plan, with nodes to spare."""
    nodes = Random(f"members plan {seed}").choice((4, 5))
    return replace(make_plan(f"members {seed}", kinds, nodes), admin_operations=0)


class MembersInspector(Inspector):
    def __init__(self, cluster: SimCluster, injector: FaultInjector) -> None:
        super().__init__(cluster, injector)
        self.voter_sets: set[tuple[int, ...]] = set()

    def _findings(self) -> Iterator[str]:
        yield from super()._findings()
        controller_id = self.cluster.controller_id
        if controller_id is not None:
            voters = self.cluster.nodes[controller_id].broker.controller.host.voters
            self.voter_sets.add(tuple(sorted(each.node_id for each in voters)))

    def check_healed(self) -> Iterator[str]:
        yield from super().check_healed()
        known = {
            tuple(each.node_id for each in node.broker.controller.host.voters) for _, node in self.cluster.running()
        }
        if len(known) != 1:
            yield f"{NOT_HEALED}: the nodes have different voters: {known}"
        if self.cluster.controller_id not in next(iter(known)):
            yield f"{NOT_HEALED}: node {self.cluster.controller_id} leads and is not one of the voters {known}"


class MembersScenario(Scenario):
    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan or make_members_plan(seed))
        self.inspector: MembersInspector = MembersInspector(self.cluster, self.injector)
        for node_id, node in self.cluster.nodes.items():
            # What they would otherwise know from a list of nodes.
            settings = node_settings(node.texts)
            kept = {name: str(settings.overrides[name]) for name in KEPT if name in settings.overrides}
            node.texts = {**kept, **{name: text for name, text in node.texts.items() if name != CLUSTER_NODES.name}}
            if node_id > 1:
                node.texts[CLUSTER_CONTACTS.name] = f"1@node1:{PORT}"
        self._dice = Random(f"members {seed}")
        self._pause_ms = self._dice.choice(PAUSES_MS)
        self._drainer = self._client("drainer")
        self._drained: int | None = None
        self._until_ms = 0

    def _is_founded(self) -> bool:
        """A quorum of one or two could not lose a disk."""
        controller_id = self.cluster.controller_id
        return (
            super()._is_founded()
            and controller_id is not None
            and len(self.cluster.nodes[controller_id].broker.controller.host.voters) >= VOTERS_MIN
        )

    def _found(self) -> bool:
        is_founded = super()._found()
        # A node wiped from now on joins again, including the first one.
        self.cluster.nodes[1].texts[CLUSTER_CONTACTS.name] = f"2@node2:{PORT},3@node3:{PORT}"
        return is_founded

    def _start_clients(self) -> None:
        super()._start_clients()
        self._until_ms = self.sim.clock.now_ms + WORK_MS
        self._change()

    def _change(self) -> None:
        """Make one change, and soon the next."""
        luck = self._dice.random()
        if luck < 0.6:
            self._drain_or_undo()
        elif luck < 0.85:
            self._vote_by_hand()
        else:
            self._forget()
        if self.sim.clock.now_ms < self._until_ms:
            self.sim.clock.call_later(self._dice.randint(1, 2 * self._pause_ms), self._change)

    def _drain_or_undo(self) -> None:
        node_id, self._drained = (
            (self._drained, None)
            if self._drained is not None
            else (chosen := self._dice.choice(list(self.cluster.nodes)), chosen)
        )
        kind = m.IncrementalAlterConfigsRequest
        value = "false" if self._drained is None else "true"
        resource = kind.AlterConfigsResource(
            resource_type=BROKER_RESOURCE,
            resource_name=str(node_id),
            configs=[kind.AlterableConfig(name=BROKER_DRAINED.name, config_operation=0, value=value)],
        )

        def heard(reply: Any) -> None:
            outcome = "no answer" if reply is None else reply.responses[0].error_code
            self.cluster.note(f"node {node_id} is drained: {value}: {outcome}")

        self._drainer.send(kind(resources=[resource]), 1, heard)

    def _vote_by_hand(self) -> None:
        node_id, is_added = self._dice.choice(list(self.cluster.nodes)), self._dice.random() < 0.5
        if is_added:
            request: m.Message = m.AddRaftVoterRequest(voter_id=node_id, timeout_ms=5_000)
        else:
            request = m.RemoveRaftVoterRequest(voter_id=node_id)
        self._tell(request, f"node {node_id} is {'given a vote' if is_added else 'robbed of its vote'} by hand")

    def _forget(self) -> None:
        """Do what `millpond node remove` does, to a node that is down and that the others can do without."""
        node_id = self._dice.choice(list(self.cluster.nodes))
        if not self.cluster.nodes[node_id].is_up or not self.injector.is_whole():
            return
        self.cluster.kill(node_id, AWAY_MS)

        def forget() -> None:
            if not self.cluster.nodes[node_id].is_up:
                self._tell(m.RemoveRaftVoterRequest(voter_id=node_id), f"node {node_id} loses its vote")
                self._tell(m.UnregisterBrokerRequest(broker_id=node_id), f"node {node_id} is unregistered")

        self.sim.clock.call_later(AWAY_MS // 2, forget)

    def _tell(self, request: m.Message, what: str) -> None:
        def heard(reply: Any) -> None:
            self.cluster.note(f"{what}: {'no answer' if reply is None else reply.error_code}")

        self._drainer.send(request, 0, heard)
