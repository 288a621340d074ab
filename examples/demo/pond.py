"""The processes of the demo: a node and a pipeline, started by their commands, and their progress."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

MILLPOND: Final = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")
READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 60.0
SAMPLE_SECONDS: Final = 0.5
GROUPS: Final = {"archive": "demo", "aggregate": "demo.aggregate", "latest": "demo.latest"}
"""The first job has the group's own name."""


class Program:
    """A command as a child process, which is stopped when the demo ends."""

    def __init__(self, *arguments: str, environment: Mapping[str, str], output: Path | None = None) -> None:
        log = output.open("wb") if output else None
        self._process = subprocess.Popen(
            [*MILLPOND, *arguments], env={**os.environ, **environment}, stdout=log, stderr=log and subprocess.STDOUT
        )
        if log:
            log.close()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop_when_done(self) -> int:
        """Wait until it exits; its exit code."""
        return self._process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """Request a stop and wait; its exit code."""
        if self.is_running():
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def wait_until_it_listens(address: str, node: Program) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + READY_SECONDS
    while node.is_running() and time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the node did not start: see node.log in the demo's folder")


@dataclass(slots=True)
class Sample:
    seconds: float
    lag: dict[str, int]
    dead_letters: int


@dataclass(slots=True)
class Watch:
    """Polls the cluster twice a second for the lag of each job and the number of dead letters."""

    bootstrap: str
    partitions: int
    samples: list[Sample] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread:
            self._thread.join()

    def is_read(self) -> bool:
        """Whether every job had finished all sent events at the last poll."""
        return bool(self.samples) and not any(self.samples[-1].lag.values())

    def wait_until_read(self, seconds: float) -> None:
        """Wait until every job has finished all sent events, for a limited time."""
        time.sleep(2 * SAMPLE_SECONDS)
        deadline = time.monotonic() + seconds
        while not self.is_read() and time.monotonic() < deadline:
            time.sleep(SAMPLE_SECONDS)

    def _run(self) -> None:
        begun = time.monotonic()
        consumers = {
            job: Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
            for job, group in GROUPS.items()
        }
        while not self._stopped.wait(SAMPLE_SECONDS):
            any_consumer = next(iter(consumers.values()))
            ends = [self._end(any_consumer, "orders", number) for number in range(self.partitions)]
            lag = {job: self._behind(consumer, ends) for job, consumer in consumers.items()}
            dead = self._end(any_consumer, "orders.dlq", 0)
            self.samples.append(Sample(time.monotonic() - begun, lag, dead))
        for consumer in consumers.values():
            consumer.close()

    def _end(self, consumer: Consumer, topic: str, partition: int) -> int:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)[1])

    def _behind(self, consumer: Consumer, ends: list[int]) -> int:
        committed = consumer.committed([TopicPartition("orders", number) for number in range(len(ends))], 10)
        return sum(end - max(each.offset, 0) for end, each in zip(ends, committed, strict=True))
