"""Copies a topic exactly once while Spark and the node are made to fail, and counts what arrived."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from support import spark_faults
from support.node import Node
from support.raw import Raw
from support.raw_transactions import committed_values
from support.stacks import kill_session, stacks_of_process, stacks_of_session
from support.topics import create_topic

SOURCE, TARGET = "from", "to"
PARTITIONS = 2
JOB = Path(__file__).with_name("spark_sink_job.py")
NODE_SETTINGS = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}


@dataclass
class Copy:
    """One job on one node, whose steps fail as planned."""

    root: Path
    records: int
    batch_rows: int
    faults: list[tuple[str, str]]
    options: tuple[str, ...] = ()
    pause_seconds: float = 0.0
    """How long the driver stays down after it was killed."""
    driver_starts: int = 0
    node_starts: int = 0
    seconds: float = 0.0
    told: list[str] = field(default_factory=list)
    _sessions: list[int] = field(default_factory=list)
    """Each driver has its own session: what it started may outlive it, as in production."""

    @property
    def folder(self) -> Path:
        return self.root / "faults"

    def run(self, seconds_max: float) -> int:
        """Run until the job reports that everything is copied; returns its exit code."""
        node = Node(self.root / "node", NODE_SETTINGS).start()
        try:
            self._fill(node)
            spark_faults.plan(self.folder, self.faults)
            self._note(node)
            began = time.monotonic()
            code = self._drive(node, began + seconds_max)
            self.seconds = time.monotonic() - began
            self.check(node)
            return code
        finally:
            for each in self._sessions:
                kill_session(each)
            self.node_starts = node.starts
            node.kill9()

    def check(self, node: Node) -> None:
        """A read_committed consumer sees each record once, and no transaction is left open."""
        with Raw(node.port) as raw:
            result = Counter(value for each in range(PARTITIONS) for value in committed_values(raw, TARGET, each))
        expected = {b"%d" % number for number in range(self.records)}
        doubled = sorted(value for value, count in result.items() if count > 1)
        assert not doubled, f"{len(doubled)} records are there twice, as {doubled[:5]}\n{self.story()}"
        missing = expected - result.keys()
        assert not missing, f"{len(missing)} records are missing, as {sorted(missing)[:5]}\n{self.story()}"
        assert result.keys() == expected

    def story(self) -> str:
        steps = self.folder / "steps.txt"
        return "\n".join([*self.told, steps.read_text() if steps.exists() else ""])[-6000:]

    def _fill(self, node: Node) -> None:
        for name in (SOURCE, TARGET):
            create_topic(node.bootstrap, name, PARTITIONS)
        producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
        for number in range(self.records):
            producer.produce(SOURCE, b"%d" % number, key=b"%d" % (number % 50), partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def _note(self, node: Node) -> None:
        (self.folder / "node.pid").write_text(str(node.pid))

    def _drive(self, node: Node, deadline: float) -> int:
        while True:
            driver = self._start(node)
            try:
                while driver.poll() is None:
                    assert time.monotonic() < deadline, self._too_slow(node)
                    if not node.is_running():
                        node.restart(crash=True)
                        self._note(node)
                    time.sleep(0.05)
            finally:
                driver.kill()
                driver.wait()
            self.told += self._said().splitlines()
            if driver.returncode >= 0:
                return driver.returncode
            time.sleep(self.pause_seconds)

    def _too_slow(self, node: Node) -> str:
        """Everything that can explain it: a run once hung for minutes with every batch committed, for no visible
        reason.
        """
        stacks = "\n".join(stacks_of_session(each) for each in self._sessions)
        stacks += f"\n=== the node\n{stacks_of_process(node.pid)}"
        (self.root / "stacks.txt").write_text(stacks)
        checkpoint = sorted(
            str(each.relative_to(self.root)) for kind in ("offsets", "commits") for each in self._noted(kind)
        )
        return "\n".join(
            [f"too slow; left: {self.left()}", self.story(), self._said()[-6000:], f"noted: {checkpoint}", stacks]
        )

    def _noted(self, kind: str) -> list[Path]:
        return [each for each in (self.root / "checkpoint" / kind).glob("*") if each.name.isdecimal()]

    def left(self) -> list[str]:
        return spark_faults.waiting(self.folder)

    def _said(self) -> str:
        return (self.root / "driver.txt").read_text(errors="replace")

    def _start(self, node: Node) -> subprocess.Popen[bytes]:
        self.driver_starts += 1
        here = str(Path(__file__).parent.parent)
        environment = {
            **os.environ,
            "PYTHONPATH": here,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "MILLPOND_SPARK_STEPS": spark_faults.WITNESS,
            spark_faults.FOLDER: str(self.folder),
        }
        words = [
            node.bootstrap,
            SOURCE,
            TARGET,
            str(self.root / "checkpoint"),
            str(self.folder),
            str(self.batch_rows),
        ]
        with (self.root / "driver.txt").open("wb") as said:
            driver = subprocess.Popen(
                [sys.executable, str(JOB), *words, *self.options],
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._sessions.append(driver.pid)
        return driver
