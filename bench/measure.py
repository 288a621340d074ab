"""Runs loads against nodes in slices; the figures are medians, with the broker's CPU time and memory."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from bench.node import Node, cpu_seconds_of
from bench.noise import Measured, medians_of
from bench.profiling import Profiler

MEGA = 1e6
GIGA = 1e9
MIB = 1024 * 1024
ANSWER_SECONDS_MAX = 150.0
"""A client that needs longer to prepare or to run a slice is stopped, so that every row ends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure, and whether to profile."""

    slices: int = 3
    slice_seconds: float = 1.5
    bytes_max: int = 1 << 30
    """The most bytes that one slice writes to disk."""
    backlog_bytes: int = 250_000_000
    """The backlog of the row catch-up."""
    quick: bool = False
    profiler: Profiler | None = None


class Client:
    """A load in a separate process."""

    def __init__(self, load: str, **arguments: object) -> None:
        self._load = load
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load", load, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def run(self, seconds: float) -> Measured:
        self.begin(seconds)
        return self.finish()

    def begin(self, seconds: float) -> None:
        """Start a slice without waiting for it; `finish` does."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def finish(self) -> Measured:
        measured: Measured = json.loads(self._line())
        return measured

    def is_done(self) -> bool:
        """Whether `finish` would return at once."""
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self._process.pid)

    def resident_bytes(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)[0]:
            self._process.kill()
            raise RuntimeError(f"the client {self._load} printed nothing for {ANSWER_SECONDS_MAX:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client {self._load} exited early with code {self._process.wait()}")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def client(load: str, node: Node, **arguments: object) -> Iterator[Client]:
    started = Client(load, port=node.port, **arguments)
    try:
        yield started
    finally:
        started.close()


def one_slice(node: Node, started: Client, seconds: float) -> Measured:
    """Run one slice; the client's counts, the broker's costs, and both per unit."""
    before = node.cpu_seconds()
    measured = started.run(seconds)
    return per_unit(measured, node.cpu_seconds() - before, node.resident_bytes())


def per_unit(measured: Measured, cpu_seconds: float, resident_bytes: int) -> Measured:
    figures = dict(measured, cpu_seconds=cpu_seconds, resident_mb=resident_bytes / MIB)
    seconds = measured["seconds"]
    figures["core_share"] = cpu_seconds / seconds
    if messages := measured.get("messages"):
        figures["messages_per_s"] = messages / seconds
        figures["cpu_s_per_million"] = cpu_seconds / (messages / MEGA)
    if size := measured.get("bytes"):
        figures["mb_per_s"] = size / MEGA / seconds
        figures["cpu_s_per_gb"] = cpu_seconds / (size / GIGA)
    if requests := measured.get("requests"):
        figures["requests_per_s"] = requests / seconds
        figures["us_per_request"] = cpu_seconds / requests * MEGA
    return figures


Slice = Callable[[float], Measured]
"""Runs for about this many seconds and returns what it counted."""


def slice_of(node: Node, started: Client) -> Slice:
    return lambda seconds: one_slice(node, started, seconds)


def in_turn(plan: Plan, slices: Mapping[str, Slice]) -> dict[str, list[Measured]]:
    """Run the slices alternately, every other round in reverse, so that a noisy moment affects all alike."""
    measured: dict[str, list[Measured]] = {name: [] for name in slices}
    for number in range(plan.slices):
        for name in slices if number % 2 == 0 else reversed(slices):
            measured[name].append(slices[name](plan.slice_seconds))
    return measured


def medians_in_turn(plan: Plan, slices: Mapping[str, Slice]) -> dict[str, Measured]:
    return {name: medians_of(each) for name, each in in_turn(plan, slices).items()}


def measure(node: Node, plan: Plan, load: str, **arguments: object) -> Measured:
    """Run a load against a node, slice by slice."""
    with client(load, node, **arguments) as started:
        if plan.profiler is not None:
            with plan.profiler.watching(node.pid):
                return medians_of([one_slice(node, started, plan.slice_seconds) for _ in range(plan.slices)])
        return medians_of([one_slice(node, started, plan.slice_seconds) for _ in range(plan.slices)])
