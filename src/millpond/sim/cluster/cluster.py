"""Several nodes in one simulated world, with a supervisor that restarts each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

from millpond.metadata.image import Image
from millpond.sim.history.records import History
from millpond.sim.node import PORT, SimNode
from millpond.sim.world.world import SimWorld

WATCH_MS = 20
RESTART_MS_MAX = 1_500
QUICK_MS = 50


class SimCluster:
    """Nodes with the ids 1 to `count`, on the hosts node1 to nodeN."""

    def __init__(
        self,
        sim: SimWorld,
        count: int,
        history: History,
        texts: Mapping[str, str] | None = None,
        *,
        has_racks: bool = False,
    ) -> None:
        """With `has_racks` each node is in its own rack, which has the node's name."""
        self.sim = sim
        self.history = history
        self.starts_refused = 0
        names = {node_id: f"node{node_id}" for node_id in range(1, count + 1)}
        members = ",".join(f"{node_id}@{name}:{PORT}" for node_id, name in names.items())
        self.nodes = {
            node_id: SimNode(
                sim,
                name,
                {
                    "node.id": str(node_id),
                    **({"cluster.nodes": members} if count > 1 else {}),
                    **({"broker.rack": name} if has_racks else {}),
                    **(texts or {}),
                },
            )
            for node_id, name in names.items()
        }
        self._random = Random(f"supervisor {sim.seed}")
        self._start_at_ms = dict.fromkeys(self.nodes, 0)
        self._paused: dict[int, int] = {}
        """Paused nodes, with the incarnation that is paused."""
        self.on_resume: Callable[[], None] = _do_nothing
        """Called when a node resumes, before it does anything."""

    # Running nodes

    def running(self) -> Iterator[tuple[int, SimNode]]:
        """Nodes that are up and not paused."""
        for node_id, node in self.nodes.items():
            if node.is_up and not self.is_paused(node_id):
                yield node_id, node

    def is_paused(self, node_id: int) -> bool:
        return self._paused.get(node_id) == self.nodes[node_id].incarnation

    @property
    def controller_id(self) -> int | None:
        """The active controller; of several that think so, the one with the latest epoch."""
        active = [
            (node.broker.controller.leader_epoch, node_id)
            for node_id, node in self.nodes.items()
            if node.is_up and node.broker.controller.is_active
        ]
        return max(active)[1] if active else None

    @property
    def image(self) -> Image | None:
        """What the active controller knows to be committed."""
        controller_id = self.controller_id
        return None if controller_id is None else self.nodes[controller_id].broker.image

    # Starting and stopping

    def watch(self) -> None:
        """Restart nodes that are down and due, every few milliseconds."""
        for node_id, node in self.nodes.items():
            if not node.is_up and self.sim.clock.now_ms >= self._start_at_ms[node_id]:
                self.start(node_id)
        self.sim.clock.call_later(WATCH_MS, self.watch)

    def start(self, node_id: int) -> bool:
        node = self.nodes[node_id]
        if node.is_up:
            return True
        started = node.start()
        self.note(
            f"node {node_id} starts, incarnation {node.incarnation}" if started else f"node {node_id} cannot start"
        )
        if not started:
            self.starts_refused += 1
            self.rest(node_id)
        return started

    def rest(self, node_id: int, at_least_ms: int = 0) -> None:
        """Keep a node that is down from being restarted for a moment."""
        delay_ms = self._random.randint(0, self._random.choice((QUICK_MS, RESTART_MS_MAX)))
        self._start_at_ms[node_id] = self.sim.clock.now_ms + at_least_ms + delay_ms

    def start_now(self) -> None:
        """Make every node that is down due for a restart."""
        self._start_at_ms = dict.fromkeys(self.nodes, 0)

    def crash(self, node_id: int, rest_ms: int = 0) -> None:
        self.note(f"node {node_id} loses power")
        self.nodes[node_id].crash()
        self.rest(node_id, rest_ms)

    def kill(self, node_id: int, rest_ms: int = 0) -> None:
        self.note(f"node {node_id} is killed")
        self.nodes[node_id].kill()
        self.rest(node_id, rest_ms)

    def stop(self, node_id: int, rest_ms: int = 0) -> None:
        """Stop cleanly; the supervisor waits `rest_ms` after the end before it restarts the node."""
        self.note(f"node {node_id} is asked to stop")
        self.nodes[node_id].stop()
        self.rest(node_id, rest_ms)

    def pause(self, node_id: int) -> None:
        self.note(f"node {node_id} is paused")
        self._paused[node_id] = self.nodes[node_id].incarnation
        self.sim.pause(self.nodes[node_id].name)

    def suspend(self, node_id: int) -> None:
        """Suspend its machine until `resume`."""
        self.note(f"node {node_id} is suspended")
        self._paused[node_id] = self.nodes[node_id].incarnation
        self.sim.fall_asleep(self.nodes[node_id].name)

    def resume(self, node_id: int) -> None:
        if self.is_paused(node_id):
            del self._paused[node_id]
            if self.nodes[node_id].is_up:
                self.note(f"node {node_id} resumes")
                self.sim.resume(self.nodes[node_id].name)
                self.on_resume()

    def note(self, line: str) -> None:
        self.history.note(self.sim.clock.now_ms, line)


def _do_nothing() -> None: ...
