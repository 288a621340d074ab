"""One queue on one core and on two: the same crowd of producers and consumers, in turns, against both.

On a machine with two cores the crowd and the brokers share them, so two processes cannot be twice as fast as one:
what they must be is no dearer a message, and faster as far as there is a processor left.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import psutil  # type: ignore[import-untyped]

from bench.load_raw import Measured
from bench.measure import Plan, client, median_of, one_slice
from bench.node import HOST, Node, cpu_seconds_of, free_port
from bench.raw import METADATA_VERSION, RawClient
from millpond.wire import messages as m

TOPIC = "spread"
PARTITIONS = 8
PRODUCERS_EACH = 4
READY_SECONDS_MAX = 60.0


class CoresNode(Node):
    """A node on several cores; what it costs is what all its processes cost."""

    def __init__(self, cores: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings, _free_row(cores))
        self.cores = cores

    def words(self, folder: str) -> list[str]:
        return [*super().words(folder), "--cores", str(self.cores)]

    def _pids(self) -> list[int]:
        own = psutil.Process(self.pid)
        return [self.pid, *(child.pid for child in own.children())]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self._pids()))

    def resident_bytes(self) -> int:
        return sum(int(psutil.Process(pid).memory_info().rss) for pid in self._pids())

    def wait_until_spread(self) -> None:
        """The topic has been made on all cores."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            with self.connect() as client:
                reply = client.call(m.MetadataRequest(topics=None), METADATA_VERSION)
            assert isinstance(reply, m.MetadataResponse)
            # While some are yet to be let in, it names all that are known.
            with open(self.log_path, encoding="utf-8", errors="replace") as log:
                is_ready = len(reply.brokers) == self.cores and "\nstop " in log.read()
            if is_ready:
                break
            time.sleep(0.05)
        self.create_topic(TOPIC)
        if (led := len({leader for leader, _ in leaders(self.port).values()})) != self.cores:
            raise RuntimeError(f"the topic is led by {led} cores, not by {self.cores}")

    def remove(self) -> None:
        # Killed, it would leave its cores to notice; in order they are gone when it is.
        self.stop()
        super().remove()


def _free_row(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_port()
        with ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.socket()).bind((HOST, port))
            return first


def leaders(port: int) -> dict[int, tuple[int, int]]:
    """The node that leads each partition of the topic, and its port."""
    with RawClient(HOST, port) as asked:
        wanted = m.MetadataRequest.MetadataRequestTopic(name=TOPIC)
        reply = asked.call(m.MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), METADATA_VERSION)
    assert isinstance(reply, m.MetadataResponse)
    ports = {each.node_id: each.port for each in reply.brokers}
    return {each.partition_index: (each.leader_id, ports[each.leader_id]) for each in reply.topics[0].partitions}


def measure_cores(plan: Plan, counts: tuple[int, ...] = (1, 2)) -> Iterator[tuple[int, Measured]]:
    """Slices take turns, so that a noisy moment hits all alike."""
    slices: dict[int, list[Measured]] = {count: [] for count in counts}
    with ExitStack() as stack:
        pairs = {}
        for count in counts:
            node = stack.enter_context(CoresNode(count, {"num.partitions": str(PARTITIONS)}))
            assert isinstance(node, CoresNode)
            node.wait_until_spread()
            pairs[count] = node, stack.enter_context(client("Spread", node, producers_each=PRODUCERS_EACH))
        for _ in range(plan.slices):
            for count, (node, started) in pairs.items():
                slices[count].append(one_slice(node, started, plan.slice_seconds))
    for count in counts:
        yield count, median_of(slices[count])
