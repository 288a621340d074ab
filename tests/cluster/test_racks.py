"""Real consumers with a rack read from the replica there, and from the leader when it is down (KIP-392)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from millpond.testing import Ponds, ponds
from support.cluster_load import COMMON
from support.java_programs import compiled, run_java
from support.patience import with_time

RACKS = {1: "east", 2: "west", 3: "north"}
TOPIC = "near"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ponds]:
    with ponds(nodes=3, racks=[*RACKS.values()]) as made:
        yield made


class RackReader:
    """A librdkafka consumer of partition 0 in a rack, which records where it reads from."""

    def __init__(self, cluster: Ponds, topic: str, rack: str) -> None:
        self.values: list[bytes | None] = []
        self.source = -1
        self._topic = topic
        self._consumer = Consumer(
            COMMON
            | {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"in-{rack}",
                "client.rack": rack,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 500,
                "statistics.interval.ms": 50,
                "stats_cb": self._note,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def _note(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        if self._topic in topics:
            self.source = topics[self._topic]["partitions"]["0"]["broker"]

    def read(self, count: int, seconds: float = 30) -> list[bytes | None]:
        """Read until it has this many records in all."""
        deadline = time.monotonic() + seconds
        while len(self.values) < count and time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                self.values.append(message.value())
        return self.values

    def wait_for_source(self, *nodes: int) -> None:
        deadline = time.monotonic() + 30
        while self.source not in nodes:
            assert time.monotonic() < deadline, f"it reads from {self.source}, not from {nodes}"
            self.read(len(self.values) + 1, 0.1)

    def close(self) -> None:
        self._consumer.close()


def numbers(first: int, last: int) -> list[str]:
    return [f"{each}" for each in range(first, last)]


def test_a_consumer_reads_in_its_rack_and_goes_on_without_it(cluster: Ponds) -> None:
    cluster.create_topic(TOPIC, 1)
    cluster.wait_until_in_sync(TOPIC)
    leader = cluster.leader(TOPIC).node_id
    near = next(node for node in RACKS if node != leader)
    reader, at_home = RackReader(cluster, TOPIC, RACKS[near]), RackReader(cluster, TOPIC, RACKS[leader])
    elsewhere = RackReader(cluster, TOPIC, "nowhere")
    try:
        cluster.produce(TOPIC, *numbers(0, 50))
        assert reader.read(50) == [each.encode() for each in numbers(0, 50)]
        reader.wait_for_source(near)
        for each in (at_home, elsewhere):
            assert len(each.read(50)) == 50
            each.wait_for_source(leader)
        # Occasional records reach the consumer at once, not with the follower's next fetch.
        waits = []
        for number in range(50, 60):
            cluster.produce(TOPIC, f"{number}")
            began = time.monotonic()
            assert len(reader.read(number + 1)) == number + 1
            waits.append(time.monotonic() - began)
        assert sorted(waits)[4] < 0.25, waits
        cluster[near].kill()
        cluster.produce(TOPIC, *numbers(60, 90))
        assert reader.read(90) == [each.encode() for each in numbers(0, 90)]
        reader.wait_for_source(*(node for node in RACKS if node != near))
    finally:
        for each in (reader, at_home, elsewhere):
            each.close()
        cluster[near].start()


@with_time
def test_the_java_client_reads_in_its_rack(cluster: Ponds, tmp_path: Path) -> None:
    classes = compiled(tmp_path)
    cluster.create_topic("java-near", 1)
    cluster.wait_until_in_sync("java-near")
    cluster.forget_clients()
    cluster.produce("java-near", *numbers(0, 200))
    leader = cluster.leader("java-near").node_id
    near = next(node for node in RACKS if node != leader)
    told = run_java(classes, "RackReader", cluster.bootstrap, "java-near", RACKS[near], "200")
    assert told == ["read 200", f"replica {near}"]
