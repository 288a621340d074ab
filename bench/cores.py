"""One node with one core and with two: the same producers and consumers, alternately, against both.

On a machine with two cores clients and brokers share them, so two processes cannot be twice as fast as one: a message
must not cost more CPU time, and throughput should grow as far as the machine allows. Also measures how long a core is
unavailable after its process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO

import psutil  # type: ignore[import-untyped]

from bench import raw
from bench.measure import MEGA, Client, Plan, client, medians_in_turn, per_unit
from bench.node import HOST, Node, Ready, cpu_seconds_of, free_port
from bench.noise import Measured
from bench.raw import METADATA_VERSION, RawClient
from millpond.wire import messages as m

TOPIC = "spread"
PARTITIONS = 8
PRODUCERS_EACH = 4
READY_SECONDS_MAX = 60.0
STEADY_SECONDS = 3.0
"""By then a command has a spare process, and its controller has heard of every core."""

WRITE_AGAIN_SECONDS = 0.005
SPIN = """
import os
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(19)
while True:
    pass
"""


class CoresNode(Node):
    """A node on several cores; costs include all of its processes."""

    def __init__(self, cores: int, settings: Mapping[str, str] | None = None, is_awaited: bool = False) -> None:
        """With `is_awaited`, `start` waits for all cores, so that it can be used like any other node."""
        super().__init__(settings, _free_row(cores))
        self.cores = cores
        self._is_awaited = is_awaited

    def start(self) -> Ready:
        ready = super().start()
        if self._is_awaited:
            self.wait_until_together()
        return ready

    def words(self, folder: str) -> list[str]:
        return [*super().words(folder), "--cores", str(self.cores)]

    def _pids(self) -> list[int]:
        own = psutil.Process(self.pid)
        return [self.pid, *(child.pid for child in own.children())]

    def launched(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        # Linux divides CPU time among sessions first, and each core has a session: so must the other nodes.
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def pid_of(self, core: int) -> int:
        """The process that has locked the core's folder."""
        folder = self.folder if core == 1 else os.path.join(self.folder, "cores", str(core))
        with open(os.path.join(folder, ".lock"), encoding="ascii") as lock:
            return int(lock.read())

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self._pids()))

    def resident_bytes(self) -> int:
        return sum(int(psutil.Process(pid).memory_info().rss) for pid in self._pids())

    def wait_until_together(self) -> None:
        """Wait until all cores are registered."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            with self.connect() as client:
                reply = client.call(m.MetadataRequest(topics=None), METADATA_VERSION)
            assert isinstance(reply, m.MetadataResponse)
            # While some are not registered yet, it names all that are known.
            with open(self.log_path, encoding="utf-8", errors="replace") as log:
                is_ready = len(reply.brokers) == self.cores and "\nstop " in log.read()
            if is_ready:
                return
            time.sleep(0.05)
        raise TimeoutError(f"not all cores came: {self.last_words()}")

    def wait_until_spread(self) -> None:
        """Create the topic with leaders on all cores."""
        self.wait_until_together()
        self.create_topic(TOPIC)
        if (led := len({leader for leader, _ in leaders(self.port).values()})) != self.cores:
            raise RuntimeError(f"the topic is led by {led} cores, not by {self.cores}")

    def remove(self) -> None:
        # After SIGKILL its cores would exit later; after a clean stop they are gone.
        self.stop()
        super().remove()


def _free_row(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        first = free_port()
        with ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.socket()).bind((HOST, port))
            return first


def leaders(port: int) -> dict[int, tuple[int, int]]:
    """The leader of each partition of the topic, and its port."""
    with RawClient(HOST, port) as asked:
        wanted = m.MetadataRequest.MetadataRequestTopic(name=TOPIC)
        reply = asked.call(m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), METADATA_VERSION)
    assert isinstance(reply, m.MetadataResponse)
    ports = {each.node_id: each.port for each in reply.brokers}
    return {each.partition_index: (each.leader_id, ports[each.leader_id]) for each in reply.topics[0].partitions}


class Spinner:
    """Uses all idle CPU time, at the lowest priority."""

    def __init__(self) -> None:
        self._processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
        self._send(signal.SIGSTOP)

    def __enter__(self) -> Spinner:
        return self

    def __exit__(self, *_: object) -> None:
        self._send(signal.SIGKILL)
        for each in self._processes:
            each.wait()

    @contextmanager
    def spinning(self) -> Iterator[None]:
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def _send(self, number: int) -> None:
        for each in self._processes:
            each.send_signal(number)


@dataclass(frozen=True, slots=True)
class Setup:
    """Nodes with their clients, and other load during a slice."""

    title: str
    nodes: Sequence[Node]
    crowd: Client
    beside: Callable[[], AbstractContextManager[None]]

    def run(self, seconds: float) -> Measured:
        """Run one slice; the costs of the nodes, and of the clients."""
        with self.beside():
            nodes_before, crowd_before = self._nodes_cpu_seconds(), self.crowd.cpu_seconds()
            measured = self.crowd.run(seconds)
            nodes_cpu, crowd_cpu = self._nodes_cpu_seconds() - nodes_before, self.crowd.cpu_seconds() - crowd_before
        found = per_unit(measured, nodes_cpu, sum(node.resident_bytes() for node in self.nodes))
        found["client_cpu_s_per_million"] = crowd_cpu / (measured["messages"] / MEGA)
        found["records_per_fetch"] = measured["consumed"] / max(measured["fetches"], 1)
        return found

    def _nodes_cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self.nodes)


ONE, ONE_OF_FULL, CORES, APART = (
    "1 process",
    "1 process, no core idle",
    "2 processes",
    "2 nodes apart",
)


def measure_cores(plan: Plan) -> dict[str, Measured]:
    """Compare one process with two.

    Two more setups explain differences: one process while both cores are busy, as they are with two processes; and
    two independent nodes with half of the partitions each.
    """
    with ExitStack() as stack:
        one, two = (_started(stack, count, PARTITIONS) for count in (1, 2))
        apart = [_started(stack, 1, PARTITIONS // 2) for _ in range(2)]
        spinner = stack.enter_context(Spinner())
        crowds = [
            stack.enter_context(client("Spread", node, producers_each=PRODUCERS_EACH, other_ports=others))
            for node, others in ((one, []), (two, []), (apart[0], [apart[1].port]))
        ]
        setups = (
            Setup(ONE, [one], crowds[0], nullcontext),
            Setup(ONE_OF_FULL, [one], crowds[0], spinner.spinning),
            Setup(CORES, [two], crowds[1], nullcontext),
            Setup(APART, apart, crowds[2], nullcontext),
        )
        return medians_in_turn(plan, {setup.title: setup.run for setup in setups})


def _started(stack: ExitStack, cores: int, partitions: int) -> CoresNode:
    node = CoresNode(cores, {"num.partitions": str(partitions)})
    stack.enter_context(node)
    node.wait_until_spread()
    return node


def measure_core_outages(plan: Plan) -> dict[int, list[float]]:
    """For how many milliseconds a core whose process is killed accepts no writes, by the number of the core.

    Each core is killed once per run of the command: a core that exits again soon is not restarted at once.
    """
    outages: dict[int, list[float]] = {2: [], 1: []}
    for _ in range(1 if plan.quick else 2 * plan.slices):
        with CoresNode(2, {"num.partitions": "2"}) as node:
            assert isinstance(node, CoresNode)
            node.wait_until_spread()
            for core, outage in outages.items():
                time.sleep(STEADY_SECONDS)
                outage.append(_outage_ms(node, core))
    return outages


def _outage_ms(node: CoresNode, core: int) -> float:
    at = {led: (partition, port) for partition, (led, port) in leaders(node.port).items()}
    partition, port = at[core]
    frame = raw.produce_frame(TOPIC, partition, raw.batch(1, 100), raw.ACKS_ALL)
    _write_once(port, frame)
    began = time.monotonic()
    os.kill(node.pid_of(core), signal.SIGKILL)
    while time.monotonic() - began < READY_SECONDS_MAX:
        try:
            _write_once(port, frame)
        except (OSError, RuntimeError):
            time.sleep(WRITE_AGAIN_SECONDS)
        else:
            return (time.monotonic() - began) * 1000
    raise RuntimeError(f"core {core} did not come back")


def _write_once(port: int, frame: bytes) -> None:
    with RawClient(HOST, port) as writer:
        writer.send(frame)
        raw.check_produced(writer.receive())
