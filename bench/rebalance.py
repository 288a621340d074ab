"""How long a group's partitions are not read while one of its members is restarted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import Producer

from bench.crowd import HEARTBEAT_MS, SESSION_MS
from bench.measure import Plan
from bench.node import HOST, Node
from bench.noise import Measured

MEMBERS = 50
PARTITIONS = 100
PROCESSES = 5
RECORD_SECONDS = 0.05
"""Each partition gets a record this often: pauses are known to about this much."""
AWAY_SECONDS = 1.0
"""How long the restarted member is away, as a process would be."""
QUIET_SECONDS = 2.5
"""A group in which nothing has changed for this long, over twice a heartbeat, is stable."""
APART_SECONDS = 4.0
"""How long the hearts of a stable group beat before a restart, so that they are out of step."""
WAIT_SECONDS_MAX = 40.0
RESTARTS = 2
RESTARTS_QUICK = 1
TOPIC = GROUP = "rebalanced"

TITLES = {
    "eager": "eager (range)",
    "cooperative": "cooperative-sticky",
    "static": "static members (range)",
    "consumer": "KIP-848 (group.protocol=consumer)",
}

NODE_SETTINGS = {
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "4",
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
}


@dataclass
class Observed:
    """The reads of all members (time, member, partition), and the times of changed assignments."""

    reads: list[tuple[float, int, int]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)


class Crowd:
    """All members, in a few processes."""

    def __init__(self, node: Node, kind: str) -> None:
        self.seen = Observed()
        self._children = []
        for place in range(PROCESSES):
            slots = list(range(place, MEMBERS, PROCESSES))
            told = {"port": node.port, "group": GROUP, "topic": TOPIC, "kind": kind, "slots": slots}
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.crowd", json.dumps(told)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for child in self._children:
            self._line(child)

    def restart(self, slot: int) -> float:
        """Start restarting a member; the time."""
        began = time.monotonic()
        self._tell(self._children[slot % PROCESSES], f"restart {slot} {AWAY_SECONDS}")
        return began

    def look(self) -> None:
        """Collect what has happened since the last call."""
        for child in self._children:
            self._tell(child, "report")
        for child in self._children:
            told = json.loads(self._line(child))
            self.seen.reads += map(tuple, told["reads"])
            self.seen.changes += map(tuple, told["changes"])

    def await_stable(self, since: float) -> None:
        """Wait until every member and every partition is read, and no assignment has changed for a while."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            time.sleep(0.25)
            self.look()
            now = time.monotonic()
            if now - since < QUIET_SECONDS or any(at > now - QUIET_SECONDS for at, _ in self.seen.changes):
                continue
            pairs = {(slot, partition) for at, slot, partition in self.seen.reads if at > now - QUIET_SECONDS / 2}
            if len(pairs) == PARTITIONS and len({slot for slot, _ in pairs}) == MEMBERS:
                return
        raise RuntimeError(f"the group is not stable after {WAIT_SECONDS_MAX:.0f} s")

    def close(self) -> None:
        for child in self._children:
            with contextlib.suppress(OSError):
                self._tell(child, "end")
        for child in self._children:
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _tell(self, child: subprocess.Popen[str], line: str) -> None:
        assert child.stdin is not None
        child.stdin.write(line + "\n")
        child.stdin.flush()

    def _line(self, child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"consumers ended early with code {child.wait()}")
        return line


@contextlib.contextmanager
def _steady_writer(node: Node) -> Iterator[None]:
    """Writes one record to every partition repeatedly."""
    over = threading.Event()
    producer = Producer({"bootstrap.servers": f"{HOST}:{node.port}", "acks": 1, "linger.ms": 1, "log_level": 0})

    def run() -> None:
        due = time.monotonic()
        while not over.is_set():
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"tick", partition=partition)
            due += RECORD_SECONDS
            producer.poll(max(0.0, due - time.monotonic()))
            time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def pauses(seen: Observed, restarted: int, began: float) -> Measured:
    """The longest pause of partitions that changed owner, that of the others, and when the group was stable."""
    by_partition: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for at, slot, partition in sorted(seen.reads):
        if at >= began - QUIET_SECONDS / 2:
            by_partition[partition].append((at, slot))
    moved = kept = 0.0
    count_moved = 0
    quiet_at = max((at for at, _ in seen.changes if at >= began), default=began)
    for reads in by_partition.values():
        readers = {slot for _, slot in reads}
        longest, ended_at = max((after[0] - before[0], after[0]) for before, after in pairwise(reads))
        if restarted in readers or len(readers) > 1:
            moved = max(moved, longest)
            count_moved += 1
            quiet_at = max(quiet_at, ended_at)
        else:
            kept = max(kept, longest)
    return {
        "moved_pause_ms": moved * 1000,
        "kept_pause_ms": kept * 1000,
        "stable_ms": (quiet_at - began) * 1000,
        "moved": count_moved,
    }


def measure_kind(kind: str, plan: Plan) -> list[Measured]:
    """Some restarts of one member after another."""
    found = []
    with Node(NODE_SETTINGS) as node:
        node.create_topic(TOPIC)
        with _steady_writer(node), contextlib.closing(Crowd(node, kind)) as crowd:
            crowd.await_stable(time.monotonic())
            for number in range(RESTARTS_QUICK if plan.quick else RESTARTS):
                time.sleep(APART_SECONDS)
                slot = (17 + 7 * number) % MEMBERS
                crowd.look()
                crowd.seen = Observed(
                    [each for each in crowd.seen.reads if each[0] > time.monotonic() - QUIET_SECONDS]
                )
                began = crowd.restart(slot)
                crowd.await_stable(began + AWAY_SECONDS)
                found.append(pauses(crowd.seen, slot, began))
    return found
