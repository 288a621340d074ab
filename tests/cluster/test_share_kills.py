"""Kafka's verifiable share consumer on three nodes that are killed in turn: everything is accepted, and once only."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millpond.testing import Ponds, ponds
from support.kafka_tools import kafka_tool
from support.patience import ALL

RECORDS = 6_000 if ALL else 2_000
KILLS = 12 if ALL else 2
PARTITIONS = 3
MEMBERS = 2
PATIENCE_SECONDS = 120.0


class Member:
    """A verifiable share consumer; its events are lines of JSON."""

    def __init__(self, tool: list[str], cluster: Ponds, journal: Path) -> None:
        self._path = journal
        words = ["--topic", "jobs", "--group-id", "workers", "--acknowledgement-mode", "sync"]
        words += ["--offset-reset-strategy", "earliest", "--bootstrap-server", cluster.bootstrap]
        with journal.open("wb") as out:
            self._process = subprocess.Popen([*tool, *words], stdout=out, stderr=subprocess.STDOUT)

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        for line in self._path.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                event = json.loads(line)
                if event["name"] == name:
                    yield event

    def acknowledged(self) -> Counter[tuple[int, int]]:
        """How often it was told that its acknowledgement of a record has succeeded."""
        return Counter(
            (part["partition"], offset)
            for event in self.events("offsets_acknowledged")
            if event["success"]
            for part in event["partitions"]
            for offset in part["offsets"]
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.slow
def test_everything_is_acknowledged_once_whatever_node_is_killed(tmp_path: Path) -> None:
    tool = kafka_tool("org.apache.kafka.tools.VerifiableShareConsumer")
    with ponds(nodes=3) as cluster, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("jobs", PARTITIONS, 3)])["jobs"].result()
        members = [Member(tool, cluster, tmp_path / f"{number}.txt") for number in range(MEMBERS)]
        for member in members:
            stack.callback(member.close)
        written: set[tuple[int, int]] = set()

        def on_delivery(error: Any, message: Any) -> None:
            assert error is None, error
            written.add((message.partition(), message.offset()))

        producer = cluster.producer
        for number in range(RECORDS):
            producer.produce("jobs", str(number), on_delivery=on_delivery)
            if number % (RECORDS // KILLS) == RECORDS // KILLS // 2:
                producer.poll(0)
                # Its clients have to find the other nodes.
                node = cluster.leader("jobs", number % PARTITIONS)
                node.kill()
                node.start()
        producer.flush()
        assert len(written) == RECORDS
        until = time.monotonic() + PATIENCE_SECONDS
        acknowledged: Counter[tuple[int, int]] = Counter()
        while acknowledged.keys() < written and time.monotonic() < until:
            time.sleep(0.5)
            acknowledged = sum((member.acknowledged() for member in members), Counter())
        assert acknowledged.keys() == written
        assert not {each: count for each, count in acknowledged.items() if count > 1}
