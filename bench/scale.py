"""Three nodes with ten thousand partitions of three replicas: what blocks their event loops, and CPU costs.

Each node measures its own loop (`bench.turns`). The longest turn in CPU time is the node's doing; the longest in wall
time is what another client may wait, including the effects of other processes. `python -m bench.scale [COUNT]` also
prints the stacks of the longest turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

from bench.cluster import Nodes
from bench.measure import Plan
from bench.node import HOST, Node, prepare_environment
from bench.raw import METADATA_VERSION, RawClient, framed
from millpond.wire import messages as m

PARTITIONS, PARTITIONS_QUICK = 10_000, 2_000
REPLICAS = 3
TOPICS = 10
CREATE_MS = 120_000
WAIT_SECONDS_MAX = 180.0
LOOK_SECONDS = 0.1
AWAY_SECONDS = 3.0
QUIET_SECONDS = 20.0

State = dict[str, Any]


@dataclass(slots=True)
class Busy:
    """The figures of one operation: the worst node of each, and the CPU time of all."""

    title: str
    seconds: float = 0.0
    turn_cpu_ms: float = 0.0
    turn_wall_ms: float = 0.0
    gc_ms: float = 0.0
    long_turns: int = 0
    cpu_seconds: float = 0.0
    stacks: list[str] = field(default_factory=list)


class WatchedNode(Node):
    """A node that reports its longest turn."""

    def words(self, folder: str) -> list[str]:
        texts = {"data.folder": folder, "listen": f"{HOST}:{self.port}", **self.settings}
        return [sys.executable, "-m", "bench.turns", *(f"{name}={value}" for name, value in texts.items())]

    def launched(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def look(self) -> State:
        """Its longest turn since the last call, and its state."""
        process = self._process
        if process is None or process.poll() is not None:
            return {}
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def stop_soon(self) -> None:
        """Request a stop; `stop` waits for it."""
        assert self._process is not None
        self._process.terminate()


class Watch:
    """Measures operations of the cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = [cast("WatchedNode", each) for each in nodes.nodes.values()]

    def states(self, busy: Busy | None = None) -> list[State]:
        """The states of running nodes; their turns since the last call are added to `busy`."""
        found = [state for node in self._nodes if (state := node.look())]
        for state in found if busy is not None else ():
            assert busy is not None
            if state["cpu_ms"] > busy.turn_cpu_ms:
                busy.turn_cpu_ms, busy.stacks = state["cpu_ms"], state["stacks"]
            busy.turn_wall_ms = max(busy.turn_wall_ms, state["wall_ms"])
            busy.gc_ms = max(busy.gc_ms, state["gc_ms"])
            busy.long_turns += state["long_turns"]
        return found

    def over(self, title: str, work: Callable[[], object], *until: Callable[[State], bool], of: int = 0) -> Busy:
        """Start an operation, and wait until the conditions hold on `of` nodes (0: on all)."""
        busy = Busy(title)
        self.states()
        before = {node: node.cpu_seconds() for node in self._nodes if node.is_running}
        began = time.monotonic()
        work()
        wanted = of or len(self._nodes)
        deadline = began + WAIT_SECONDS_MAX
        while True:
            states = self.states(busy)
            if sum(all(state.get("led") is not None and each(state) for each in until) for state in states) >= wanted:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{title}: not over after {WAIT_SECONDS_MAX} s, the nodes see {states}")
            time.sleep(LOOK_SECONDS)
        busy.seconds = time.monotonic() - began
        busy.cpu_seconds = sum(
            max(node.cpu_seconds() - before.get(node, 0.0), 0.0) for node in self._nodes if node.is_running
        )
        return busy


def measure_scale(plan: Plan, partitions: int = 0) -> Iterator[Busy]:
    count = partitions or (PARTITIONS_QUICK if plan.quick else PARTITIONS)

    def is_there(state: State) -> bool:
        """Whether all partitions are open and led, and all replicas in sync."""
        return state["open"] == sum(state["led"].values()) == count and state["in_sync"] == REPLICAS * count

    with Nodes(3, {"auto.leader.rebalance.enable": "false"}, WatchedNode) as nodes:
        watch = Watch(nodes)

        def controller() -> WatchedNode:
            return cast("WatchedNode", nodes[watch.states()[0]["controller"]])

        def follower() -> WatchedNode:
            leader = watch.states()[0]["controller"]
            return cast("WatchedNode", next(node for number, node in nodes.nodes.items() if number != leader))

        # Forwarded requests time out after 30 s, and these take longer on a busy machine.
        with controller().connect() as client:
            client.socket.settimeout(WAIT_SECONDS_MAX)
            create = f"create {count:,} partitions, "
            yield watch.over(f"{create}one topic", lambda: _create(client, {"wide": count}), is_there)
            yield watch.over("delete them", lambda: _delete(client, ["wide"]), lambda state: state["open"] == 0)
            topics = {f"wide-{number}": count // TOPICS for number in range(TOPICS)}
            yield watch.over(f"{create}{TOPICS} topics in one request", lambda: _create(client, topics), is_there)
            yield watch.over("metadata of everything", lambda: _metadata(client), is_there)
        yield watch.over("nothing", lambda: time.sleep(QUIET_SECONDS), is_there)
        yield from _lost(watch, "kill -9 of a node that is not the controller", follower(), Node.kill, is_there)
        yield from _lost(watch, "kill -9 of the controller", controller(), Node.kill, is_there)
        yield from _lost(watch, "SIGTERM of the controller", controller(), Node.stop, is_there)
        yield watch.over("clean stop of all", lambda: _stop_all(nodes), of=-1)
        yield watch.over("start of all", lambda: _start_all(nodes), is_there)


def _lost(
    watch: Watch,
    title: str,
    node: WatchedNode,
    end: Callable[[Node], object],
    is_there: Callable[[State], bool],
) -> Iterator[Busy]:
    number = node.settings["node.id"]

    def is_led(state: State) -> bool:
        """Whether other nodes lead all partitions."""
        return state["led"].keys().isdisjoint({number, "-1"}) and state["controller"] not in (-1, int(number))

    yield watch.over(f"{title}, until others lead", lambda: end(node), is_led, of=2)
    yield watch.over("  a while without it", lambda: time.sleep(AWAY_SECONDS), is_led, of=2)
    yield watch.over("  it comes back to all ISRs", node.start, is_there)


def _create(client: RawClient, topics: dict[str, int]) -> None:
    kind = m.CreateTopicsRequest
    wanted = [
        kind.CreatableTopic(name=name, num_partitions=count, replication_factor=-1, assignments=[], configs=[])
        for name, count in topics.items()
    ]
    reply = client.call(kind(topics=wanted, timeout_ms=CREATE_MS), 7)
    assert isinstance(reply, m.CreateTopicsResponse)
    if refused := [each.error_message for each in reply.topics if each.error_code]:
        raise RuntimeError(f"no topic: {refused[0]}")


def _delete(client: RawClient, topics: list[str]) -> None:
    client.call(m.DeleteTopicsRequest(topic_names=topics, timeout_ms=CREATE_MS), 5)


def _metadata(client: RawClient) -> None:
    client.send(framed(m.MetadataRequest(topics=None), METADATA_VERSION))
    client.skip()


def _stop_all(nodes: Nodes) -> None:
    for node in nodes.nodes.values():
        cast("WatchedNode", node).stop_soon()
    for node in nodes.nodes.values():
        node.stop()


def _start_all(nodes: Nodes) -> None:
    for node in nodes.nodes.values():
        node.start()


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else PARTITIONS
    prepare_environment()
    for busy in measure_scale(Plan(), partitions):
        print(
            f"{busy.title:52} {busy.seconds:6.1f} s  turn {busy.turn_cpu_ms:6.1f} ms cpu {busy.turn_wall_ms:6.1f} ms,"
            f" {busy.long_turns:3} long, gc {busy.gc_ms:6.1f} ms, cpu {busy.cpu_seconds:6.1f} s, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        for stack in busy.stacks:
            print(f"      {stack}")


if __name__ == "__main__":
    main()
