"""A broker that does not speak Kafka's protocol: its process, and which of our races it can run with which load."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from bench.line import LeftOut
from bench.measure import Plan, client, one_slice
from bench.node import HOST, START_SECONDS_MAX, Node, cpu_seconds_of
from bench.race import WARM_SECONDS, Race, Slice, Way

READ_MESSAGES = 300_000
READ_MESSAGES_QUICK = 50_000


class ForeignNode(Node):
    """Ready when it takes connections; what it costs is what all its processes cost."""

    def _await_answer(self, began: float) -> None:
        assert self._process is not None
        while time.perf_counter() - began < START_SECONDS_MAX:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended at once: {self.last_words()}")
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise TimeoutError(f"it takes no connections: {self.last_words()}")

    def _pids(self) -> list[int]:
        own = psutil.Process(self.pid)
        return [self.pid, *(child.pid for child in own.children(recursive=True))]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self._pids()))

    def resident_bytes(self) -> int:
        return sum(int(psutil.Process(pid).memory_info().rss) for pid in self._pids())


def program(name: str, package: str) -> str:
    """Where it is; LeftOut where it is not."""
    found = shutil.which(name, path=None) or shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        raise LeftOut(f"there is no {name} here: apt-get install {package}")
    return found


@dataclass(frozen=True, slots=True)
class Foreign:
    """`prefix` begins the names of its loads."""

    name: str
    title: str
    prefix: str
    node: Callable[[Mapping[str, str]], Node]
    warm_seconds: float = WARM_SECONDS

    def runs(self, race: Race) -> bool:
        return race.name in LOADS

    def enter(self, stack: ExitStack, race: Race, plan: Plan, way: Way) -> Slice:
        load = LOADS[race.name]
        node = stack.enter_context(self.node(way.settings.get(self.name, {})))
        started = stack.enter_context(client(self.prefix + load, node, **_arguments(load, plan)))
        return lambda seconds: one_slice(node, started, seconds)


LOADS = {
    "one": "One",
    "one-all": "One",
    "produce": "Bulk",
    "produce-all": "Bulk",
    "fetch": "Read",
    "latency-all": "Paced",
}
"""The load for each race that all of them can run; the ways of a race say how sure an acknowledgement is."""


def _arguments(load: str, plan: Plan) -> dict[str, object]:
    match load:
        case "One":
            return {"connections": 16}
        case "Bulk":
            # They keep an index of every message in memory, or the messages themselves.
            return {"bytes_max": plan.bytes_max // 4}
        case "Read":
            return {"messages": READ_MESSAGES_QUICK if plan.quick else READ_MESSAGES}
    return {}
