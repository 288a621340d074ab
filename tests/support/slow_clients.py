"""A working client next to crowds that are slow, silent, deaf or restless: how long its requests take, and alone.

The crowd runs on the same machine and takes CPU and kernel time. How much that alone affects the working client is
measured too: in turns in which the crowd connects to a bystander that does next to nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support.crowd import KINDS
from support.node import Node
from support.raw import Raw, batch

CROWD = Path(__file__).parent / "crowd.py"
BYSTANDER = Path(__file__).parent / "bystander.py"
TOPIC = "work"
BULK_TOPIC = "bulk"
BULK_BATCHES = 64
BULK_BYTES = 900_000
REQUESTS_PER_SECOND = 400


@dataclass(slots=True)
class Trial:
    """One kind of crowd: the latencies of the working client in seconds, in turns with and without it."""

    kind: str
    count: int
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    elsewhere: list[float] = field(default_factory=list)
    """While the crowd connects to a bystander."""
    node_cores: list[float] = field(default_factory=list)
    """The cores that the node used next to the crowd, in each turn."""
    crowds: dict[str, list[Told]] = field(default_factory=dict)
    """The crowds' reports, by their target."""
    resident_bytes: int = 0
    open_files: int = 0

    @property
    def connects(self) -> int:
        return sum(told.connects for told in self.crowds["node"])

    def p99_ratio(self) -> float:
        return percentile(self.beside, 0.99) / percentile(self.alone, 0.99)

    def own_ratio(self) -> float:
        """The same without the crowd's effect on the machine: the ratio that is the node's own."""
        alone, beside, elsewhere = (percentile(each, 0.99) for each in (self.alone, self.beside, self.elsewhere))
        return 1 + max(beside - max(elsewhere, alone), 0) / alone

    def __str__(self) -> str:
        parts = [f"{self.kind:10} {self.count:6,}"]
        for name, times in (("alone", self.alone), ("beside", self.beside), ("elsewhere", self.elsewhere)):
            if times:
                p50, p99 = (1000 * percentile(times, share) for share in (0.5, 0.99))
                parts.append(f"{name} p50 {p50:5.2f} p99 {p99:6.2f} ms")
        parts.append(f"x{self.p99_ratio():5.2f}")
        if self.elsewhere:
            parts.append(f"of the node x{self.own_ratio():5.2f}")
        for whom, told in self.crowds.items():
            seconds = sum(each.seconds for each in told)
            rate = sum(each.connects for each in told) / seconds
            cores = sum(each.cpu_seconds for each in told) / seconds
            parts.append(f"crowd at the {whom} {rate:,.0f} connects/s with {cores:.2f} cores")
        parts.append(f"node {sum(self.node_cores) / len(self.node_cores):.2f} cores")
        parts.append(f"{self.resident_bytes >> 20} MiB, {self.open_files} files")
        return "   ".join(parts)


class Told(NamedTuple):
    """A crowd's final report."""

    connects: int
    seconds: float
    cpu_seconds: float


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Worker:
    """Writes a record and reads it back, at a fixed rate."""

    def __init__(self, port: int) -> None:
        self._raw = Raw(port)
        self._raw.create_topic(TOPIC)
        self._records = batch(b"x" * 1000)
        self._offset = 0

    def work(self, seconds: float) -> list[float]:
        """How long each request took."""
        times: list[float] = []
        began = time.monotonic()
        due = began
        while (now := time.monotonic()) < began + seconds:
            if now < due:
                time.sleep(due - now)
            # A late one does not catch up: it would measure its own backlog.
            due = max(due, now) + 2 / REQUESTS_PER_SECOND
            at = time.perf_counter()
            written = self._raw.produce(TOPIC, 0, self._records, acks=1)
            between = time.perf_counter()
            read = self._raw.fetch(TOPIC, 0, written.base_offset, wait_ms=1000)
            times += (between - at, time.perf_counter() - between)
            assert not written.error_code, written
            assert not read.error_code, read
            assert read.records, read
        return times

    def close(self) -> None:
        self._raw.close()


@contextmanager
def crowd(kind: str, port: int, count: int, trial: Trial, whom: str = "node") -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, str(CROWD), kind, str(port), str(count), BULK_TOPIC],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n", "the crowd did not come together"
        yield
        process.stdin.close()
        told = json.loads(process.stdout.readline())
        trial.crowds.setdefault(whom, []).append(Told(told["connects"], told["seconds"], told["cpu_seconds"]))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def bystander() -> Iterator[int]:
    """Runs a bystander; yields its port."""
    process = subprocess.Popen(
        [sys.executable, str(BYSTANDER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def fill(port: int) -> None:
    """A topic with enough data for clients that never read."""
    with Raw(port) as raw:
        raw.create_topic(BULK_TOPIC)
        records = batch(bytes(BULK_BYTES))
        for _ in range(BULK_BATCHES):
            assert not raw.produce(BULK_TOPIC, 0, records, acks=1).error_code


def measure(
    node: Node,
    kind: str,
    count: int,
    rounds: int,
    seconds: float,
    files_of: Callable[[Node], int],
    *,
    is_compared: bool = False,
) -> Trial:
    """Turns with the crowd and without it alternate, so that other load on the machine affects both; `is_compared`
    adds turns with the crowd elsewhere."""
    assert kind in KINDS, kind
    trial = Trial(kind, count)
    worker = Worker(node.port)
    try:
        worker.work(0.3)
        for _ in range(rounds):
            trial.alone += worker.work(seconds)
            with crowd(kind, node.port, count, trial):
                before, began = node.cpu_seconds(), time.monotonic()
                trial.beside += worker.work(seconds)
                trial.node_cores.append((node.cpu_seconds() - before) / (time.monotonic() - began))
                trial.resident_bytes = max(trial.resident_bytes, node.resident_bytes())
                trial.open_files = max(trial.open_files, files_of(node))
            # Its remaining connections are closed before the next turn.
            time.sleep(0.5)
            if is_compared:
                with bystander() as port, crowd(kind, port, count, trial, "bystander"):
                    trial.elsewhere += worker.work(seconds)
                time.sleep(0.5)
    finally:
        worker.close()
    return trial
