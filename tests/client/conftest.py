"""Clusters for the client's tests: a Millpond node, and librdkafka's own mock cluster as a second opinion."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer as RawProducer
from confluent_kafka.admin import AdminClient, NewTopic

from millpond import Consumer, Message, Producer
from support.node import Node, eventually, free_port

PARTITIONS = 4
CHILD = Path(__file__).parent / "crash_child.py"
_numbers = count(1)

logging.getLogger("millpond.client").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Cluster:
    name: str
    bootstrap: str

    @property
    def is_mock(self) -> bool:
        return self.name == "mock"

    @property
    def session_s(self) -> float:
        """Short on the mock, which removes a member that left only when its session expires."""
        return 4.0 if self.is_mock else 45.0

    def topic(self, partitions: int = PARTITIONS) -> str:
        """A new topic. The mock creates topics itself, always with four partitions."""
        name = f"topic-{next(_numbers)}"
        self.create(name, partitions)
        return name

    def create(self, name: str, partitions: int = PARTITIONS) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        if self.is_mock:
            admin.list_topics(name, timeout=10)
        else:
            admin.create_topics([NewTopic(name, partitions)])[name].result(60)

    def group(self) -> str:
        return f"group-{next(_numbers)}"

    def fill(self, topic: str, values: list[bytes], *, keys: int = 0, partition: int | None = None) -> None:
        """Send these values, with `keys` different keys."""
        with Producer(self.bootstrap) as producer:
            futures = [
                producer.send(topic, value, f"key-{n % keys}" if keys else None, partition=partition)
                for n, value in enumerate(values)
            ]
        assert all(future.exception() is None for future in futures)

    def read(self, topic: str, at_least: int = 1, *, settle_s: float = 0.3, seconds: float = 60.0) -> list[Message]:
        """Everything in the topic: waits for `at_least` records, then briefly for unexpected ones."""
        records: list[Message] = []
        with Consumer(None, [topic], bootstrap=self.bootstrap) as consumer:
            deadline = time.monotonic() + seconds
            while len(records) < at_least and time.monotonic() < deadline:
                records += consumer.poll(1000, 0.1)
            records += consumer.poll(1000, settle_s)
        return records


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    node = Node(
        tmp_path_factory.mktemp("client-node"),
        {
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "group.consumer.heartbeat.interval.ms": "300",
        },
    ).start()
    yield Cluster("millpond", node.bootstrap)
    node.kill9()


@pytest.fixture(scope="session")
def mock() -> Iterator[Cluster]:
    keeper = RawProducer({"test.mock.num.brokers": 1, "log_level": 2})
    metadata = next(iter(keeper.list_topics(timeout=10).brokers.values()))
    yield Cluster("mock", f"{metadata.host}:{metadata.port}")
    keeper.flush(0)


@pytest.fixture(params=["millpond", "mock"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Runs the test against both."""
    either: Cluster = request.getfixturevalue("broker" if request.param == "millpond" else "mock")
    return either


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis server."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    redis = pytest.importorskip("redis")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        try:
            return bool(redis.Redis.from_url(url).ping())
        except redis.ConnectionError:
            return False

    assert eventually(answers)
    yield url
    process.kill()
    process.wait()


class Child:
    """A worker in a separate process; see crash_child.py for its arguments."""

    def __init__(self, **arguments: object) -> None:
        words = [f"{name}={value}" for name, value in arguments.items()]
        self.process = subprocess.Popen([sys.executable, str(CHILD), *words])

    def wait(self, seconds: float = 40.0) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def make(**arguments: object) -> Child:
        children.append(Child(**arguments))
        return children[-1]

    yield make
    for each in children:
        each.end()
