"""Brokers that do not speak Kafka's protocol: their processes, and the races that they can run."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from bench.line import LeftOut
from bench.measure import Plan, Slice, client, slice_of
from bench.node import HOST, START_SECONDS_MAX, Node, cpu_seconds_of
from bench.race import WARM_SECONDS, Race, Way
from bench.races import WORKERS

READ_MESSAGES = 300_000
READ_MESSAGES_QUICK = 50_000


class ForeignNode(Node):
    """Ready when it accepts connections; costs include all of its processes."""

    def _await_answer(self, began: float) -> None:
        assert self._process is not None
        while time.perf_counter() - began < START_SECONDS_MAX:
            if self._process.poll() is not None:
                raise RuntimeError(f"it exited at once: {self.last_words()}")
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise TimeoutError(f"it accepts no connections: {self.last_words()}")

    def _pids(self) -> list[int]:
        own = psutil.Process(self.pid)
        return [self.pid, *(child.pid for child in own.children(recursive=True))]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self._pids()))

    def resident_bytes(self) -> int:
        return sum(int(psutil.Process(pid).memory_info().rss) for pid in self._pids())


def program(name: str, package: str) -> str:
    """The path of an installed program; LeftOut if it is missing."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if path is None:
        raise LeftOut(f"{name} is not installed: apt-get install {package}")
    return path


@dataclass(frozen=True, slots=True)
class Foreign:
    """`protocol` names the modules with its protocol: `bench.load_NAME` and `bench.queue_NAME`."""

    name: str
    title: str
    node: Callable[[Mapping[str, str]], Node]
    protocol: str
    queue: Mapping[str, str] | None = None
    """It has queues, and this is how to open one; else it has a log."""
    logs: bool = True
    warm_seconds: float = WARM_SECONDS

    def runs(self, race: Race) -> bool:
        if race.name in QUEUE_LOADS:
            return self.queue is not None
        return self.logs and race.name in LOADS

    def enter(self, stack: ExitStack, race: Race, plan: Plan, way: Way) -> Slice:
        if race.name in QUEUE_LOADS:
            load, workers = QUEUE_LOADS[race.name]
            arguments: dict[str, object] = {"workers": workers, **(self.queue or {})}
        else:
            load = LOADS[race.name]
            arguments = _arguments(load, plan)
        node = stack.enter_context(self.node(way.settings.get(self.name, {})))
        started = stack.enter_context(client(load, node, broker=self.protocol, **arguments))
        return slice_of(node, started)


LOADS = {
    "one": "One",
    "one-all": "One",
    "produce": "Bulk",
    "produce-all": "Bulk",
    "fetch": "Read",
    "latency-all": "Paced",
}
"""The load of each race that all logs can run."""

QUEUE_LOADS = {
    f"{prefix}-{workers}": (load, workers)
    for prefix, load in (("queue", "Jobs"), ("queue-latency", "PacedJobs"))
    for workers in WORKERS
}
"""The load of each race of queues, and its workers."""


def _arguments(load: str, plan: Plan) -> dict[str, object]:
    match load:
        case "One":
            return {"connections": 16}
        case "Bulk":
            # They keep every message, or an index of it, in memory.
            return {"bytes_max": plan.bytes_max // 4}
        case "Read":
            return {"messages": READ_MESSAGES_QUICK if plan.quick else READ_MESSAGES}
    return {}
