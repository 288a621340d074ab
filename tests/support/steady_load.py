"""Clients that must be undisturbed: no write fails, no static member changes partitions, no record is missed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster_check import Findings, check_reads, check_topic, located
from support.cluster_load import Reader, Writer, all_acks, commit_beginning, read_topic

TOPIC: Final = "steady"
PARTITIONS: Final = 6
GROUPS: Final = {"classic": "range", "new": "consumer"}
MEMBERS: Final = 2
SETTLE_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 4.0


@dataclass(frozen=True)
class Report:
    findings: Findings
    failures: list[str]
    assignments: dict[str, int]
    """How often each member got an assignment."""
    quiet: list[float]
    during: list[float]

    def __str__(self) -> str:
        return (
            f"produce p99 quiet {1000 * _p99(self.quiet):.1f} ms, meanwhile {1000 * _p99(self.during):.1f} ms "
            f"(longest {1000 * max(self.during):.0f} ms, {len(self.during)} records)"
        )

    def check(self) -> None:
        assert not self.findings, str(self.findings)
        assert not self.failures, self.failures[:3]
        assert set(self.assignments.values()) == {1}, self.assignments
        assert len(self.during) > 100


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


class SteadyLoad:
    """Writers and groups of static members on a topic with three replicas."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._findings = Findings()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        for group in GROUPS:
            commit_beginning(bootstrap, TOPIC, group, PARTITIONS)
        self._readers = {
            f"{group}-{number}": Reader(
                bootstrap, TOPIC, group, protocol, self._findings, instance=f"{group}-{number}"
            )
            for group, protocol in GROUPS.items()
            for number in range(MEMBERS)
        }
        self._writers = [Writer(bootstrap, TOPIC, PARTITIONS, name) for name in range(2)]
        self._quiet: list[float] = []

    def start(self) -> None:
        """Run until every member reads, and then for a quiet period."""
        for reader in self._readers.values():
            reader.start()
        for writer in self._writers:
            writer.start()
        deadline = time.monotonic() + SETTLE_SECONDS
        while not all(reader.read for reader in self._readers.values()):
            assert time.monotonic() < deadline, "the members do not begin to read"
            time.sleep(0.1)
        # While the members join, they may get other partitions.
        time.sleep(QUIET_SECONDS / 2)
        for reader in self._readers.values():
            reader.assignments = 1
        counts = [len(writer.latencies) for writer in self._writers]
        time.sleep(QUIET_SECONDS)
        for writer, count in zip(self._writers, counts, strict=True):
            self._quiet += writer.latencies[count:]
        self._counts = [len(writer.latencies) for writer in self._writers]

    def stop(self) -> Report:
        """Stop the writers, let the members read to the end, and check."""
        during = [
            latency
            for writer, count in zip(self._writers, self._counts, strict=True)
            for latency in writer.latencies[count:]
        ]
        for writer in self._writers:
            writer.stop()
        log = read_topic(self._bootstrap, TOPIC, PARTITIONS)
        acks = located(all_acks(self._writers), log)
        check_topic(acks, log, self._findings)
        wanted = {(ack.partition, ack.offset) for ack in acks}
        deadline = time.monotonic() + SETTLE_SECONDS
        for group in GROUPS:
            while not wanted <= self._read_by(group) and time.monotonic() < deadline:
                time.sleep(0.1)
            check_reads(group, acks, self._read_by(group), self._findings)
        assignments = {name: reader.assignments for name, reader in self._readers.items()}
        for reader in self._readers.values():
            reader.stop()
        failures = [failure for writer in self._writers for failure in writer.failures]
        return Report(self._findings, failures, assignments, self._quiet, during)

    def _read_by(self, group: str) -> set[tuple[int, int]]:
        return {
            each for name, reader in self._readers.items() if name.startswith(f"{group}-") for each in reader.read
        }
