"""Share groups with librdkafka's share consumer: who receives which record, and how often."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from support.go_programs import built, run_go
from support.java_programs import compiled, run_java
from support.node import Node
from support.raw import Raw

PATIENCE_SECONDS = 60.0

HOLDER = """
import sys
from confluent_kafka import ShareConsumer

consumer = ShareConsumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "log_level": 0})
consumer.subscribe([sys.argv[3]])
while True:
    for message in consumer.poll(1.0):
        print(message.offset(), flush=True)
"""
"""A member that holds what it has received: it never polls again while it has records."""


class Crew:
    """The members of one share group, which reads a topic of one partition from its start."""

    def __init__(self, node: Node, topic: str) -> None:
        self.servers = f"127.0.0.1:{node.port}"
        self.topic = topic
        self.group = f"share-{topic}"
        self._members: list[ShareConsumer] = []
        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        with Raw(node.port) as raw:
            raw.create_topic(topic, 1)
        self.configure("share.auto.offset.reset", "earliest")

    def configure(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, self.group, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()

    def write(self, *values: str) -> None:
        for value in values:
            self._producer.produce(self.topic, value)
            # One batch for each, so that the records can be shared out.
            self._producer.flush()

    def join(self, **config: Any) -> ShareConsumer:
        member = ShareConsumer({"bootstrap.servers": self.servers, "group.id": self.group, "log_level": 0, **config})
        self._members.append(member)
        member.subscribe([self.topic])
        return member

    def close(self) -> None:
        for member in self._members:
            member.close()


def poll(member: ShareConsumer) -> list[Any]:
    """The next records, of which none is an error."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        messages = list(member.poll(0.5))
        if messages:
            assert [each.error() for each in messages] == [None] * len(messages)
            return messages
    raise AssertionError("no records")


def values(messages: list[Any]) -> list[str]:
    return [each.value().decode() for each in messages]


@pytest.fixture
def crew(node: Node, topic: str) -> Iterator[Crew]:
    made = Crew(node, topic)
    yield made
    made.close()


def test_each_record_goes_to_one_member(crew: Crew) -> None:
    wanted = {str(number) for number in range(200)}
    members = [crew.join(**{"max.poll.records": 10}) for _ in range(2)]
    crew.write(*sorted(wanted))
    received: list[list[str]] = [[], []]
    until = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, received)) < len(wanted) and time.monotonic() < until:
        for member, found in zip(members, received, strict=True):
            found += values(list(member.poll(0.2)))
    assert sorted(received[0] + received[1]) == sorted(wanted)
    assert all(received), "both members share one partition"


def test_implicit_acknowledgement_accepts(crew: Crew) -> None:
    crew.write("a", "b")
    member = crew.join()
    found: list[str] = []
    while len(found) < 2:
        found += values(poll(member))
    assert sorted(found) == ["a", "b"]
    assert list(member.commit_sync().values()) == [None]
    member.close()
    crew.write("c")
    assert values(poll(crew.join())) == ["c"]


def test_a_released_record_is_delivered_again(crew: Crew) -> None:
    crew.write("a")
    member = crew.join(**{"share.acknowledgement.mode": "explicit"})
    for count in (1, 2):
        (message,) = poll(member)
        assert (message.value(), message.delivery_count()) == (b"a", count)
        member.acknowledge(message, AcknowledgeType.RELEASE)
        assert list(member.commit_sync().values()) == [None]
    (message,) = poll(member)
    member.acknowledge(message, AcknowledgeType.ACCEPT)
    assert list(member.commit_sync().values()) == [None]
    crew.write("b")
    (message,) = poll(member)
    assert message.value() == b"b"
    member.acknowledge(message, AcknowledgeType.REJECT)
    assert list(member.commit_sync().values()) == [None]
    member.close()
    crew.write("c")
    assert values(poll(crew.join())) == ["c"]


def test_the_records_of_a_killed_member_go_to_another(crew: Crew) -> None:
    crew.write("a")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, crew.servers, crew.group, crew.topic], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "0\n"
    finally:
        holder.kill()
        holder.wait()
    began = time.monotonic()
    member = crew.join()
    (message,) = poll(member)
    assert (message.value(), message.delivery_count()) == (b"a", 2)
    assert time.monotonic() - began < 25, "not only once its lock has expired"


def test_accepted_records_stay_accepted_when_the_node_is_killed(make_node: Callable[..., Node], topic: str) -> None:
    node = make_node()
    crew = Crew(node, topic)
    crew.write("a", "b", "c")
    member = crew.join(**{"share.acknowledgement.mode": "explicit", "max.poll.records": 1})
    accepted: list[bytes] = []
    while len(accepted) < 2:
        for message in poll(member):
            if len(accepted) < 2:
                member.acknowledge(message, AcknowledgeType.ACCEPT)
                accepted.append(message.value())
            else:
                member.acknowledge(message, AcknowledgeType.RELEASE)
        assert list(member.commit_sync().values()) == [None]
    node.kill9()
    node.start()
    messages = poll(crew.join())
    assert set(values(messages)) == {"a", "b", "c"} - {each.decode() for each in accepted}
    crew.close()


MODES = pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
RECORDS = (*(f"plain-{number}" for number in range(20)), "release", "renew")
DELIVERIES = sorted([*(f"{each} 1" for each in RECORDS), "release 2"])


def check_all_accepted(crew: Crew) -> None:
    crew.write("last")
    assert values(poll(crew.join())) == ["last"]


@pytest.mark.slow
@MODES
def test_the_java_client_releases_and_renews(crew: Crew, mode: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    classes = compiled(tmp_path_factory.mktemp("classes"))
    crew.write(*RECORDS)
    lines = run_java(classes, "ShareReader", crew.servers, crew.group, crew.topic, str(len(RECORDS)), mode)
    # The renewed record was delivered to the application twice.
    assert sorted(lines) == sorted([*DELIVERIES, "renew 1"])
    check_all_accepted(crew)


@pytest.fixture(scope="module")
def go_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("go"))


@pytest.mark.slow
@MODES
def test_franz_go_releases_and_renews(crew: Crew, mode: str, go_reader: Path) -> None:
    crew.write(*RECORDS)
    lines = run_go(go_reader, crew.servers, crew.group, crew.topic, str(len(RECORDS)), mode)
    assert sorted(lines) == DELIVERIES
    check_all_accepted(crew)
