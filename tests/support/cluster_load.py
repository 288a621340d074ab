"""Clients of a cluster under faults: idempotent producers, groups of both protocols, and a watch on their commits."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from support.cluster_check import UNTOLD, Ack, Findings, Log, Written

COMMON: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    # A stopped node must not hold up requests for a minute, which is the default.
    "socket.timeout.ms": 4000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
    "error_cb": lambda _: None,
}
ROUND_SECONDS: Final = 0.01
PAUSE_MS: Final = 20
"""Between two records of a writer process."""

MESSAGE_SECONDS_MAX: Final = 120
COMMIT_SECONDS: Final = 0.3
CLOSE_SECONDS_MAX: Final = 10.0
READ_SECONDS_MAX: Final = 60.0


class Writer(threading.Thread):
    """Writes numbers to all partitions in turn, at an even pace, and keeps what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, name: int, per_round: int = 2) -> None:
        super().__init__(name=f"writer-{name}", daemon=True)
        self.acks: list[Ack] = []
        self.failures: list[str] = []
        self.latencies: list[float] = []
        """How long each record took to be acknowledged, in seconds."""
        self.acked_at = time.monotonic()
        self.longest_silence = 0.0
        self._topic = topic
        self._partitions = partitions
        self._number = name
        self._per_round = per_round
        self._over = threading.Event()
        self._producer = Producer(
            COMMON
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "request.timeout.ms": 4000,
                "message.timeout.ms": MESSAGE_SECONDS_MAX * 1000,
            }
        )

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            for _ in range(self._per_round):
                record = Written(self._number, number)
                try:
                    self._producer.produce(
                        self._topic, bytes(record), partition=number % self._partitions, on_delivery=self._on_delivery
                    )
                except BufferError:
                    break
                except KafkaException as fault:
                    # A producer with a fatal error raises at every call.
                    self.failures.append(str(fault))
                    return
                number += 1
            self._producer.poll(ROUND_SECONDS)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        now = time.monotonic()
        if error is not None:
            # The outcome is unknown: the record may or may not be there.
            self.failures.append(str(error))
            return
        self.longest_silence = max(self.longest_silence, now - self.acked_at)
        self.acked_at = now
        self.latencies.append(message.latency() or 0.0)
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        self.acks.append(Ack(partition, UNTOLD if offset is None else offset, Written.parsed(value)))

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._producer.flush(MESSAGE_SECONDS_MAX)


class ProcessWriter(threading.Thread):
    """The same with another client library, in a separate process that prints what was acknowledged."""

    def __init__(self, words: Sequence[str], bootstrap: str, topic: str, partitions: int, name: int) -> None:
        super().__init__(name=f"writer-{name}", daemon=True)
        self.acks: list[Ack] = []
        self.failures: list[str] = []
        self._number = name
        self._process = subprocess.Popen(
            [*words, bootstrap, topic, str(partitions), str(name), str(PAUSE_MS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *rest = line.decode().split(maxsplit=3)
            if kind == "acked":
                partition, offset, number = map(int, rest)
                self.acks.append(Ack(partition, offset, Written(self._number, number)))
            else:
                self.failures.append(" ".join(rest[1:]))

    def stop(self) -> None:
        """At the end of its input the process flushes and exits."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(MESSAGE_SECONDS_MAX)
        finally:
            self._process.kill()
            self._process.wait()
        self.join()


class Reader(threading.Thread):
    """A member of a group: reads, and commits what it has read."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        protocol: str,
        findings: Findings,
        *,
        diary: Path | None = None,
        instance: str | None = None,
    ) -> None:
        """`diary` is the file for its library's log. `instance` is its name as a static member."""
        super().__init__(name=f"reader-{group}", daemon=True)
        self.read: list[tuple[int, int]] = []
        """Partition and offset of each record, in order of arrival."""
        self.assignments = 0
        """How often it got an assignment."""
        self._findings = findings
        self._group = group
        self._is_committing = False
        self._over = threading.Event()
        settings = (
            COMMON
            | grouping(protocol)
            | {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "on_commit": self._on_commit,
                # A read from an invalid offset must be reported: the group has committed a start.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
            }
        )
        if instance is not None:
            settings |= {"group.instance.id": instance}
        if diary is not None:
            settings |= {"debug": "cgrp,topic", "log_level": 7, "logger": _diary(diary)}
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._on_assign)

    def _on_assign(self, *_: object) -> None:
        self.assignments += 1

    def run(self) -> None:
        committed_at = time.monotonic()
        while not self._over.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                self._take(message)
            now = time.monotonic()
            if now - committed_at > COMMIT_SECONDS and not self._is_committing:
                committed_at = now
                self._commit()
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.read.append((partition, offset))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._findings.add("told it is gone", f"{self._group}: {error}")

    def _commit(self) -> None:
        """One commit at a time: librdkafka retries a refused commit after a later one."""
        self._is_committing = True
        try:
            # If it fails, the records are read again.
            self._consumer.commit(asynchronous=True)
        except KafkaException:
            # Nothing new, or no longer a member.
            self._is_committing = False

    def _on_commit(self, *_: object) -> None:
        self._is_committing = False

    def stop(self) -> None:
        self._over.set()
        self.join(CLOSE_SECONDS_MAX)


class ProcessReader(threading.Thread):
    """Members of several groups with another client library, in a separate process that prints what it reads."""

    def __init__(
        self, words: Sequence[str], bootstrap: str, topic: str, groups: Mapping[str, str], findings: Findings
    ) -> None:
        """`groups` maps each name to its protocol."""
        super().__init__(name="readers", daemon=True)
        self.read: dict[str, list[tuple[int, int]]] = {group: [] for group in groups}
        self.ended: list[str] = []
        """The errors of members that could not continue."""
        self._findings = findings
        self._process = subprocess.Popen(
            [*words, bootstrap, topic, *(f"{group}={protocol}" for group, protocol in groups.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.take(line.decode(), self._findings)

    def take(self, line: str, findings: Findings) -> None:
        kind, group, rest = line.split(maxsplit=2)
        match kind:
            case "read":
                partition, offset = map(int, rest.split())
                self.read[group].append((partition, offset))
            case "gone":
                findings.add("told it is gone", f"{group}: {rest}")
            case _:
                self.ended.append(f"{group}: {rest}")

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.join()


def _diary(path: Path) -> logging.Logger:
    logger = logging.getLogger(path.name)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    if not logger.handlers:
        # One handler for all rounds: a reader that logs each line once more in every round has no time to read.
        handler = logging.FileHandler(path)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
    return logger


def grouping(protocol: str) -> dict[str, Any]:
    if protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {
        "partition.assignment.strategy": protocol,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }


def commit_beginning(bootstrap: str, topic: str, group: str, partitions: int) -> None:
    consumer = Consumer(COMMON | {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        offsets = [TopicPartition(topic, index, 0) for index in range(partitions)]
        patiently(lambda: consumer.commit(offsets=offsets, asynchronous=False))
    finally:
        consumer.close()


class CommitWatch(threading.Thread):
    """Polls a group's committed offsets."""

    def __init__(self, bootstrap: str, topic: str, group: str, partitions: int) -> None:
        super().__init__(name=f"watch-{group}", daemon=True)
        self.commits: list[tuple[int, int]] = []
        self._over = threading.Event()
        self._wanted = [TopicPartition(topic, index) for index in range(partitions)]
        self._consumer = Consumer(COMMON | {"bootstrap.servers": bootstrap, "group.id": group})

    def run(self) -> None:
        while not self._over.wait(COMMIT_SECONDS):
            try:
                committed = self._consumer.committed(self._wanted, timeout=2.0)
            except KafkaException:
                continue
            # A response for an unavailable partition is not an offset.
            self.commits += [(each.partition, each.offset) for each in committed if each.error is None]
        self._consumer.close()

    def stop(self) -> None:
        self._over.set()
        self.join()


def patiently(do: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            do()
            return
        except KafkaException as fault:
            if time.monotonic() > deadline:
                raise TimeoutError(str(fault)) from fault
            time.sleep(0.1)


def read_topic(bootstrap: str, topic: str, partitions: int) -> Log:
    """All records of a topic."""
    consumer = Consumer(
        COMMON
        | {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    log: dict[int, list[tuple[int, Written]]] = {index: [] for index in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the topic cannot be read to its end; ended are {ended}"
            for message in consumer.consume(1000, timeout=0.5):
                _sort(message, log, ended)
    finally:
        consumer.close()
    return log


def _sort(message: Message, log: dict[int, list[tuple[int, Written]]], ended: set[int]) -> None:
    error, partition = message.error(), message.partition()
    assert partition is not None
    if error is None:
        value, offset = message.value(), message.offset()
        assert value is not None
        assert offset is not None
        log[partition].append((offset, Written.parsed(value)))
    elif error.code() == KafkaError._PARTITION_EOF:
        ended.add(partition)


AnyWriter = Writer | ProcessWriter


def all_acks(writers: Iterable[AnyWriter]) -> list[Ack]:
    return [ack for writer in writers for ack in writer.acks]
