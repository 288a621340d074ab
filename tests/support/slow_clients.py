"""A working client beside crowds that are slow, silent, deaf or restless: how long its requests take, and alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.crowd import KINDS
from support.node import Node
from support.raw import Raw, batch

CROWD = Path(__file__).parent / "crowd.py"
TOPIC = "work"
BULK_TOPIC = "bulk"
BULK_BATCHES = 64
BULK_BYTES = 900_000
REQUESTS_PER_SECOND = 400
DIED_SECONDS = 60


@dataclass(slots=True)
class Trial:
    """One kind of crowd: the times of the working client in seconds, in turns with and without it."""

    kind: str
    count: int
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    connects: int = 0
    crowd_seconds: float = 0.0
    resident_bytes: int = 0
    open_files: int = 0

    def p99_ratio(self) -> float:
        return percentile(self.beside, 0.99) / percentile(self.alone, 0.99)

    def __str__(self) -> str:
        alone, beside = (
            f"p50 {1000 * percentile(times, 0.5):6.2f}  p99 {1000 * percentile(times, 0.99):7.2f}"
            for times in (self.alone, self.beside)
        )
        rate = self.connects / self.crowd_seconds if self.crowd_seconds else 0
        return (
            f"{self.kind:12} {self.count:6,}  alone {alone} ms   beside {beside} ms   x{self.p99_ratio():5.2f}   "
            f"{rate:7,.0f} connects/s   {self.resident_bytes >> 20:5} MiB   {self.open_files:4} files"
        )


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Worker:
    """Writes a record and reads it back, so often a second."""

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
            # One that is late does not hurry: it would measure its own crowd.
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
def crowd(kind: str, port: int, count: int, trial: Trial) -> Iterator[None]:
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
        trial.connects += told["connects"]
        trial.crowd_seconds += told["seconds"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def fill(port: int) -> None:
    """A topic with enough for those who never read."""
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
) -> Trial:
    """Turns with the crowd and without it, so that what the machine does else is in both."""
    assert kind in KINDS, kind
    trial = Trial(kind, count)
    worker = Worker(node.port)
    try:
        worker.work(0.3)
        for _ in range(rounds):
            trial.alone += worker.work(seconds)
            with crowd(kind, node.port, count, trial):
                trial.beside += worker.work(seconds)
                trial.resident_bytes = max(trial.resident_bytes, node.resident_bytes())
                trial.open_files = max(trial.open_files, files_of(node))
            # What is left of it is closed before the next turn.
            time.sleep(0.5)
    finally:
        worker.close()
    return trial
