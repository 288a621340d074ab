"""Rows per second into and out of Spark, compared with the most that Spark itself reaches in the same run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench import raw
from bench.jars import NoJars, fetched
from bench.line import LeftOut
from bench.measure import Plan, Slice, medians_in_turn, per_unit
from bench.node import Node
from bench.noise import Measured
from bench.volume import fill

VALUE_BYTES = 100
PARTITIONS = 2
ROWS = 2_000_000
ROWS_QUICK = 400_000
SLOWER = 10
"""The divisor of the number of rows for slow paths."""

TOPIC, TARGET = "rows", "written"
READ_CEILING = "Spark reads: Arrow batches that are ready"
WRITE_CEILING = "Spark writes: Arrow batches to nowhere"


@dataclass(frozen=True, slots=True)
class Way:
    """One way in or out. `known` is how many rows a second a first trial of it reached on two cores."""

    title: str
    verb: str
    kind: str
    options: dict[str, str]
    rows: int
    known: float | None = None

    @property
    def ceiling(self) -> str:
        """The title of the line that it is compared with."""
        return READ_CEILING if self.verb == "read" else WRITE_CEILING


class SparkProcess:
    """The process with the Spark session; costs include all of its children."""

    def __init__(self, settings: dict[str, str], log_path: Path) -> None:
        self._log_path = log_path
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark_child", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._facts = psutil.Process(self._process.pid)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def do(self, way: Way, rows: int) -> Measured:
        """Run one job; its time and CPU time."""
        before, _ = self._spent()
        words = {"do": way.verb, "kind": way.kind, "options": way.options, "rows": rows}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        seconds = self._answer()["seconds"]
        after, resident = self._spent()
        counted = {"seconds": seconds, "messages": float(rows), "bytes": float(rows * VALUE_BYTES)}
        return per_unit(counted, after - before, resident)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Spark's launcher prints here, too.
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                if "failed" in told:
                    raise RuntimeError(told["failed"])
                return told
        raise RuntimeError(f"Spark ended early: {self._log_path.read_text(errors='replace')[-2000:]}")

    def _spent(self) -> tuple[float, int]:
        """CPU seconds and memory of the driver, the virtual machine and every Python worker."""
        seconds, resident = 0.0, 0
        for each in (self._facts, *self._facts.children(recursive=True)):
            try:
                times = each.cpu_times()
                resident += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            # A worker that has exited is included in its parent's times.
            seconds += times.user + times.system + times.children_user + times.children_system
        return seconds, resident


def connector() -> list[str]:
    """The archives of Spark's own connector; empty if they are not available."""
    try:
        return [str(path) for path in fetched("connector")]
    except NoJars:
        return []


@contextmanager
def spark(archives: list[str]) -> Iterator[SparkProcess]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise LeftOut("Spark needs Java: apt-get install openjdk-17-jre-headless")
    try:
        import pyspark  # noqa: F401
    except ImportError as missing:
        raise LeftOut("Spark is not installed: pip install 'millpond[spark]'") from missing
    folder = Path(tempfile.mkdtemp(prefix="millpond-bench-spark-"))
    settings = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    if archives:
        settings["spark.jars"] = ",".join(archives)
    try:
        process = SparkProcess(settings, folder / "log.txt")
        try:
            yield process
        finally:
            process.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill_topics(node: Node, rows: int) -> int:
    """Write at least this many rows to both partitions; the number of rows."""
    node.create_topic(TARGET)
    _, count = raw.full_batch(VALUE_BYTES)
    batches = -(-rows // (count * PARTITIONS))
    return sum(fill(node, TOPIC, batches, VALUE_BYTES, partition) for partition in range(PARTITIONS))


def ways_of(node: Node, rows: int, table: Path, with_connector: bool) -> list[Way]:
    place = {"kafka.bootstrap.servers": node.address}
    taken = {**place, "subscribe": TOPIC, "startingOffsets": "earliest"}
    given = {**place, "topic": TARGET}
    few = rows // SLOWER
    half = rows // 2

    def ready(shape: str, count: int) -> dict[str, str]:
        return {"rows": str(count), "shape": shape}

    reads = [
        Way(READ_CEILING, "read", "ceiling", ready("arrow", rows), rows, known=1.7e6),
        Way("Spark reads: Python tuples that are ready", "read", "ceiling", ready("tuples", few), few, known=1.8e5),
        Way('Spark reads a topic: format("millpond")', "read", "millpond", taken, rows, known=1.44e6),
        Way("Spark reads a topic: its own connector", "read", "kafka", taken, rows),
    ]
    exactly = {**given, "delivery": "exactly_once"}
    writes = [
        Way(WRITE_CEILING, "write", "ceiling", {}, half, known=8.5e5),
        Way("Spark writes a topic: at least once", "write", "millpond", given, half),
        Way("Spark writes a topic: exactly once", "write", "millpond", exactly, half),
        Way("Spark writes a topic: its own connector", "write", "kafka", given, half),
        Way("Spark writes a Delta table", "write", "millpond_delta", {"path": str(table)}, half, known=1.71e5),
    ]
    return [way for way in (*reads, *writes) if with_connector or way.kind != "kafka"]


def measure_ways(plan: Plan) -> Iterator[tuple[Way, Measured]]:
    """Every path with its medians."""
    archives = connector()
    with (
        Node({"num.partitions": str(PARTITIONS)}) as node,
        tempfile.TemporaryDirectory(prefix="millpond-bench-lake-") as folder,
        spark(archives) as process,
    ):
        rows = fill_topics(node, ROWS_QUICK if plan.quick else ROWS)
        ways = ways_of(node, rows, Path(folder) / "table", bool(archives))
        for way in ways:
            if way.verb == "read":
                process.do(replace(way, verb="count"), way.rows)
        # Warm up: the virtual machine compiles code after a while.
        for way in ways * (1 if plan.quick else 2):
            process.do(way, way.rows)
        found = medians_in_turn(plan, {way.title: _slice(process, node, way) for way in ways})
    yield from ((way, found[way.title]) for way in ways)


def _slice(process: SparkProcess, node: Node, way: Way) -> Slice:
    def run(_: float) -> Measured:
        before = node.cpu_seconds()
        figures = process.do(way, way.rows)
        figures["node_cpu_s_per_million"] = (node.cpu_seconds() - before) / way.rows * 1e6
        return figures

    return run
