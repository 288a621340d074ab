"""Rows a second through Spark, in and out, each beside what Spark itself can do at most in the same run."""

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
from bench.measure import Plan, per_unit
from bench.node import Node
from bench.noise import Measured, medians_of

VALUE_BYTES = 100
PARTITIONS = 2
ROWS = 2_000_000
ROWS_QUICK = 400_000
SLOWER = 10
"""So many times fewer rows where Spark is known to be slow."""

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
    """The child with its session, and what it costs with all that it has started."""

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
        """Seconds and processor seconds of one job."""
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
            # Spark's launcher also has things to say here.
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                if "failed" in told:
                    raise RuntimeError(told["failed"])
                return told
        raise RuntimeError(f"Spark ended early: {self._log_path.read_text(errors='replace')[-2000:]}")

    def _spent(self) -> tuple[float, int]:
        """Processor seconds and memory of the driver, the virtual machine and every Python worker."""
        seconds, resident = 0.0, 0
        for each in (self._facts, *self._facts.children(recursive=True)):
            try:
                times = each.cpu_times()
                resident += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            # A worker that has ended counts with the one who started it.
            seconds += times.user + times.system + times.children_user + times.children_system
        return seconds, resident


def connector() -> list[str]:
    """The archives of Spark's own connector, or none where they cannot be had."""
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


def fill(node: Node, rows: int) -> int:
    """At least so many rows in both partitions; how many there are."""
    node.create_topic(TOPIC)
    node.create_topic(TARGET)
    records, count = raw.full_batch(VALUE_BYTES)
    written = 0
    with node.connect() as writer:
        while written < rows:
            for partition in range(PARTITIONS):
                writer.send(raw.produce_frame(TOPIC, partition, records, raw.ACKS_LEADER))
                raw.check_produced(writer.receive())
                written += count
    return written


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
    """Every way with its medians; slices take turns, so that a noisy moment hits all alike."""
    archives = connector()
    with (
        Node({"num.partitions": str(PARTITIONS)}) as node,
        tempfile.TemporaryDirectory(prefix="millpond-bench-lake-") as folder,
        spark(archives) as process,
    ):
        rows = fill(node, ROWS_QUICK if plan.quick else ROWS)
        ways = ways_of(node, rows, Path(folder) / "table", bool(archives))
        slices: list[list[Measured]] = [[] for _ in ways]
        for way in ways:
            if way.verb == "read":
                process.do(replace(way, verb="count"), way.rows)
        # The virtual machine compiles what it has seen often enough.
        for way in ways * (1 if plan.quick else 2):
            process.do(way, way.rows)
        for _ in range(plan.slices):
            for place, way in enumerate(ways):
                before = node.cpu_seconds()
                found = process.do(way, way.rows)
                found["node_cpu_s_per_million"] = (node.cpu_seconds() - before) / way.rows * 1e6
                slices[place].append(found)
    yield from zip(ways, map(medians_of, slices), strict=True)
