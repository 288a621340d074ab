"""How long one client delays another: the longest round trip of a second connection while a node is busy.

A node has one event loop, so anything that blocks it delays every client. The node has many partitions, and many
clients stay connected, each the only member of a group with committed offsets.

The machine contributes to a longest round trip, so every operation is repeated and the shortest of these counts; the
line "nothing" shows what the machine alone contributes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench import raw
from bench.groups import (
    COMMIT_VERSION,
    COORDINATOR_VERSION,
    await_coordinator,
    check,
    commit_request,
    join_alone,
    join_request,
)
from bench.measure import Plan
from bench.node import HOST, Node
from millpond.wire import messages as m

PARTITIONS, PARTITIONS_QUICK = 10_000, 2_000
CROWD, CROWD_QUICK = 1_000, 200
"""Groups, with one connection each."""
MADE = 1_000
MEMBERS = 300
SEGMENTS = 1_000
SEGMENT_BYTES = 16 << 10
COMMITS_EACH = 20
"""Long enough for a member that says nothing."""
QUIET_SECONDS = 1.0
TICK_MS = 1_000
"""The interval of retention, or of checkpoints, while that is measured."""


class Probe:
    """Measures round trips on a second connection."""

    def __init__(self, node: Node) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.probe", HOST, str(node.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def longest_ms(self) -> float:
        """The longest round trip since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True, slots=True)
class Stall:
    title: str
    longest_ms: float
    note: str = ""


@contextmanager
def probing(node: Node) -> Iterator[Probe]:
    probe = Probe(node)
    try:
        time.sleep(0.2)
        probe.longest_ms()
        yield probe
    finally:
        probe.close()


def best_of(times: int, probe: Probe, work: Callable[[], object]) -> float:
    """The best of a few longest round trips."""
    longest = []
    for _ in range(times):
        time.sleep(0.2)
        probe.longest_ms()
        work()
        longest.append(probe.longest_ms())
    return min(longest)


class Crowd:
    """Connected clients, each the only member of a group with committed offsets."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._clients: list[raw.RawClient] = []
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def connect(self, node: Node) -> None:
        self.close()
        hello = raw.api_versions_frame()
        for _ in range(self.size):
            self._clients.append(node.connect())
            self._clients[-1].send(hello)
            self._clients[-1].skip()

    def form_groups(self) -> None:
        await_coordinator(self._clients[0], "reader-0")
        for number, client in enumerate(self._clients):
            group = f"reader-{number}"
            offsets = dict.fromkeys(range(COMMITS_EACH), 1)
            commit = commit_request(group, *reversed(join_alone(client, group)), "wide-0", offsets)
            check(client.call(commit, COMMIT_VERSION))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients = []


def measure_stalls(plan: Plan) -> Iterator[Stall]:
    partitions = PARTITIONS_QUICK if plan.quick else PARTITIONS
    ticks = ("log.retention.check.interval.ms", "log.flush.offset.checkpoint.interval.ms")
    retention_tick, checkpoint_tick = ticks
    never = dict.fromkeys(ticks, "3600000")
    crowd = Crowd(CROWD_QUICK if plan.quick else CROWD)
    try:
        with Node(never) as node, node.connect() as client:
            client.socket.settimeout(120)
            for number in range(partitions // MADE):
                client.make_topic(f"wide-{number}", MADE)
            crowd.connect(node)
            crowd.form_groups()
            with probing(node) as probe:
                yield Stall("nothing", best_of(plan.slices, probe, lambda: time.sleep(QUIET_SECONDS)))
                yield _metadata(plan, client, probe, partitions)
                yield from _topics(plan, client, probe)
                yield _join(plan, node, probe)
                yield _look_up(plan, client, probe)
            yield _restarted(node, crowd, {})
            _restarted(node, crowd, {checkpoint_tick: str(TICK_MS)})
            with node.connect() as again, probing(node) as probe:
                yield _checkpoint(again, probe)
            _restarted(node, crowd, {**never, retention_tick: str(TICK_MS)})
            with node.connect() as again:
                yield _retention(node, again)
    finally:
        crowd.close()


def _metadata(plan: Plan, client: raw.RawClient, probe: Probe, partitions: int) -> Stall:
    frame = raw.framed(m.MetadataRequest(topics=None), raw.METADATA_VERSION)

    def ask() -> None:
        client.send(frame)
        client.skip()

    return Stall(f"metadata of {partitions:,} partitions", best_of(plan.slices, probe, ask))


def _topics(plan: Plan, client: raw.RawClient, probe: Probe) -> Iterator[Stall]:
    made, deleted = [], []
    for number in range(plan.slices):
        made.append(best_of(1, probe, lambda number=number: client.make_topic(f"made-{number}", MADE)))  # type: ignore[misc]
        request = m.DeleteTopicsRequest(topic_names=[f"made-{number}"], timeout_ms=60_000)

        def delete(request: m.DeleteTopicsRequest = request) -> None:
            client.call(request, 5)
            time.sleep(0.5)

        deleted.append(best_of(1, probe, delete))
    yield Stall(f"create {MADE:,} partitions", min(made))
    yield Stall(f"delete {MADE:,} partitions", min(deleted))


def _join(plan: Plan, node: Node, probe: Probe) -> Stall:
    with node.connect() as client:
        client.call(m.FindCoordinatorRequest(key="crowd"), COORDINATOR_VERSION)

    def join(group: str) -> None:
        request = join_request(group, session_ms=10_000)
        with ExitStack() as stack:
            members = [stack.enter_context(node.connect()) for _ in range(MEMBERS)]
            for member in members:
                member.send(raw.framed(request, 3))
            for member in members:
                member.skip()

    longest = [best_of(1, probe, lambda number=number: join(f"crowd-{number}")) for number in range(plan.slices)]  # type: ignore[misc]
    return Stall(f"{MEMBERS} members join a group", min(longest))


def _look_up(plan: Plan, client: raw.RawClient, probe: Probe) -> Stall:
    wanted = m.ListOffsetsRequest.ListOffsetsPartition
    records, _ = raw.full_batch(100)
    client.make_topic("by-time", 100)
    for index in range(100):
        client.send(raw.produce_frame("by-time", index, records, raw.ACKS_LEADER))
        raw.check_produced(client.receive())
    stamp = time.time_ns() // 1_000_000 - 60_000
    partitions = [wanted(partition_index=index, timestamp=stamp) for index in range(100)]
    topic = m.ListOffsetsRequest.ListOffsetsTopic(name="by-time", partitions=partitions)
    request = m.ListOffsetsRequest(replica_id=-1, topics=[topic])
    return Stall("look-up by time in 100 partitions", best_of(plan.slices, probe, lambda: client.call(request, 5)))


def _restarted(node: Node, crowd: Crowd, settings: dict[str, str]) -> Stall:
    """Restart; coordinators load while the clients reconnect."""
    node.stop()
    node.settings.update(settings)
    ready = node.start()
    with probing(node) as probe:
        crowd.connect(node)
        time.sleep(QUIET_SECONDS)
        longest = probe.longest_ms()
    title = f"after a start with {crowd.size * COMMITS_EACH:,} committed offsets, {crowd.size:,} clients come back"
    return Stall(title, longest, f"ready after {ready.seconds:.2f} s")


def _checkpoint(client: raw.RawClient, probe: Probe) -> Stall:
    records = raw.batch(1, 100)
    longest = []
    for _ in range(3):
        for index in range(MADE):
            client.send(raw.produce_frame("wide-0", index, records, raw.ACKS_LEADER))
            raw.check_produced(client.receive())
        probe.longest_ms()
        time.sleep(2.5 * TICK_MS / 1000)
        longest.append(probe.longest_ms())
    return Stall(f"checkpoint, {MADE:,} partitions written to", min(longest))


def _retention(node: Node, client: raw.RawClient) -> Stall:
    client.make_topic("old", 1, {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "3600000"})
    records, _ = raw.full_batch(100, SEGMENT_BYTES)
    for _ in range(SEGMENTS):
        client.send(raw.produce_frame("old", 0, records, raw.ACKS_LEADER))
        raw.check_produced(client.receive())
    alter = m.AlterConfigsRequest.AlterableConfig
    resource = m.AlterConfigsRequest.AlterConfigsResource(
        resource_type=2,
        resource_name="old",
        configs=[alter(name="retention.ms", value="1"), alter(name="segment.bytes", value=str(SEGMENT_BYTES))],
    )
    with probing(node) as probe:
        client.call(m.AlterConfigsRequest(resources=[resource]), 1)
        time.sleep(3 * TICK_MS / 1000)
        return Stall(f"retention of {SEGMENTS:,} segments", probe.longest_ms())
