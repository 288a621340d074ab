"""One queue on several cores: real processes behind one command, with the clients that people use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from millpond.admin.backup import back_up
from millpond.admin.restore import restore
from millpond.broker.data_folder.identity import Identity, write_identity
from millpond.node.disk import RealDisk

pytestmark = pytest.mark.boundary

PARTITIONS = 6


class Cores:
    """`millpond up --cores`, its processes and its clients."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.bootstrap = node.address.split()[0]
        self.settings = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.settings)

    def pids(self) -> dict[int, int]:
        """The process of each core, by the number of its node: it holds the core's folder."""
        folders = {1: self.node.data} | {int(each.name): each for each in (self.node.data / "cores").glob("[0-9]*")}
        return {core: int((folder / ".lock").read_text()) for core, folder in folders.items()}

    def create(self, name: str) -> str:
        self.admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)
        return name

    def leaders(self, topic: str) -> list[int]:
        metadata = self.admin.list_topics(topic, timeout=20).topics[topic].partitions
        return [metadata[index].leader for index in range(len(metadata))]

    def replicas(self, topic: str) -> list[int]:
        metadata = self.admin.list_topics(topic, timeout=20).topics[topic].partitions
        return [len(each.replicas) for each in metadata.values()]

    def read(self, topic: str, count: int, *, group: str = "readers", **options: Any) -> list[bytes]:
        consumer = Consumer({**self.settings, "group.id": group, "auto.offset.reset": "earliest", **options})
        values: list[bytes] = []
        deadline = time.monotonic() + 60
        try:
            consumer.subscribe([topic])
            while len(values) < count and time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    values.append(message.value() or b"")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return values


def write(producer: Producer, topic: str, values: list[bytes]) -> None:
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % PARTITIONS)
    assert producer.flush(60) == 0


def numbered(count: int, word: str = "v") -> list[bytes]:
    return [f"{word}{number}".encode() for number in range(count)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cores]:
    from cli.conftest import Node

    made = Node(tmp_path_factory.mktemp("cores") / "data", "--cores", "2")
    yield Cores(made)
    made.stop(signal.SIGKILL)


def test_partitions_are_spread_and_have_one_replica(two: Cores) -> None:
    topic = two.create("spread")
    assert sorted(set(two.leaders(topic))) == [1, 2]
    assert sorted(two.leaders(topic)) == [1, 1, 1, 2, 2, 2]
    assert set(two.replicas(topic)) == {1}


def test_librdkafka_writes_to_all_cores_and_a_group_reads_from_all(two: Cores) -> None:
    topic = two.create("rdkafka")
    values = numbered(600)
    write(Producer({**two.settings, "acks": "all", "enable.idempotence": True}), topic, values)
    assert sorted(two.read(topic, 600)) == sorted(values)
    committed = Consumer({**two.settings, "group.id": "readers"})
    ends = committed.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], timeout=20)
    committed.close()
    assert [each.offset for each in ends] == [100] * PARTITIONS


def test_kafka_python_does_the_same(two: Cores) -> None:
    topic = two.create("kafka-python")
    producer = KafkaProducer(bootstrap_servers=two.bootstrap, acks="all")
    for at, value in enumerate(numbered(60)):
        producer.send(topic, value, partition=at % PARTITIONS)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=two.bootstrap,
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    values = []
    for record in consumer:
        values.append(record.value)
        if len(values) == 60:
            break
    consumer.close()
    assert sorted(values) == sorted(numbered(60))


def test_a_backup_has_what_is_on_every_core(two: Cores, tmp_path: Path) -> None:
    from cli.conftest import Node

    topic = two.create("kept")
    assert {1, 2} == set(two.leaders(topic))
    write(Producer({**two.settings, "acks": "all"}), topic, numbered(60))
    kept = back_up(Path(two.node.data), tmp_path / "kept", lambda: 1_700_000_000_000)
    assert kept.manifest.roots == ["", "cores/2/"]
    restore(tmp_path / "kept", tmp_path / "again")
    again = Node(tmp_path / "again")
    try:
        cores = Cores(again)
        assert set(cores.leaders(topic)) == {1, 2}
        assert sorted(cores.read(topic, 60)) == sorted(numbered(60))
        write(Producer({**cores.settings, "acks": "all"}), topic, numbered(6, "on"))
    finally:
        again.stop(signal.SIGKILL)


def test_a_transaction_spans_the_cores(two: Cores) -> None:
    topic = two.create("whole")
    assert {1, 2} == set(two.leaders(topic))
    producer = Producer({**two.settings, "transactional.id": "across"})
    producer.init_transactions(30)
    for word, end in (("no", producer.abort_transaction), ("yes", producer.commit_transaction)):
        producer.begin_transaction()
        write(producer, topic, numbered(12, word))
        end(30)
    assert sorted(two.read(topic, 12, group="whole")) == sorted(numbered(12, "yes"))


def test_with_a_wildcard_listener_all_cores_advertise_the_address_used(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    """Who comes in by an address is told the same one for all cores."""
    node = start_node("--cores", "2", "--listen", "0.0.0.0:0", data=tmp_path / "wild")
    port = node.address.split()[0].rpartition(":")[2]
    settings = {"bootstrap.servers": f"127.0.0.2:{port}", "log_level": 0}
    brokers = AdminClient(settings).list_topics(timeout=20).brokers
    assert {each.host for each in brokers.values()} == {"127.0.0.2"}
    assert sorted(brokers) == [1, 2]


def test_a_killed_core_comes_back_at_once_and_the_other_goes_on(two: Cores) -> None:
    topic = two.create("killed")
    write(Producer({**two.settings, "acks": "all"}), topic, numbered(60))
    for core in (2, 1):
        before = two.pids()
        os.kill(before[core], signal.SIGKILL)
        # All of it, through the same client, however long each part was away.
        producer = Producer({**two.settings, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 30_000})
        write(producer, topic, numbered(60, f"after{core}"))
        after = two.pids()
        assert after[core] != before[core]
        assert after[3 - core] == before[3 - core]
    assert len(two.read(topic, 180, group="killed")) == 180
    assert two.node.process.poll() is None


def test_a_folder_of_one_core_gets_another_and_is_not_started_with_fewer(
    start_node: Callable[..., Any], lonely: Any, tmp_path: Path
) -> None:
    data = tmp_path / "grows"
    one = start_node(data=data)
    single = Cores(one)
    write(Producer({**single.settings, "acks": "all"}), single.create("old"), numbered(60))
    assert one.stop() == 0

    two = Cores(start_node("--cores", "2", data=data))
    assert set(two.leaders("old")) == {1}
    assert set(two.leaders(two.create("new"))) == {1, 2}
    write(Producer({**two.settings, "acks": "all"}), "new", numbered(60))
    lonely.succeeds("cluster", "balance", "-b", two.bootstrap, "--yes")
    assert set(two.leaders("old")) == {1, 2}
    processes = psutil.Process(two.node.process.pid).children()
    assert two.node.stop() == 0
    assert not any(each.is_running() for each in processes)
    for folder in (data, data / "cores" / "2"):
        assert (folder / ".kafka_cleanshutdown").exists()

    # Fewer are refused, and nothing is changed by it.
    lonely.fails(
        "up",
        "--cores",
        "1",
        "--data",
        str(data),
        "--listen",
        "127.0.0.1:0",
        error="has partitions on 2 cores: start it with --cores 2",
    )

    # Without a number it has as many as before.
    again = Cores(start_node(data=data))
    assert set(again.pids()) == {1, 2}
    for topic in ("old", "new"):
        assert sorted(again.read(topic, 60, group=topic)) == sorted(numbered(60))
    assert again.node.stop(signal.SIGINT) == 0


def test_a_node_of_a_cluster_gets_no_cores(lonely: Any, tmp_path: Path) -> None:
    data = tmp_path / "d"
    data.mkdir()
    identity = Identity(4, UUID(int=7), "some-cluster", contacts=("1@127.0.0.1:9092",))
    write_identity(RealDisk(), str(data), identity)
    lonely.fails(
        "up", "--cores", "2", "--data", str(data), "--listen", "127.0.0.1:0", error="belongs to node 4 of a cluster"
    )
    assert not (data / "cores").exists()


def test_cores_end_with_their_parent(start_node: Callable[..., Any], tmp_path: Path) -> None:
    cores = Cores(start_node("--cores", "2", data=tmp_path / "d"))
    # The spare one, too.
    processes = psutil.Process(cores.node.process.pid).children()
    assert {each.pid for each in processes} >= {*cores.pids().values()}
    cores.node.process.kill()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def test_a_closed_terminal_ends_all_in_order(start_node: Callable[..., Any], tmp_path: Path) -> None:
    cores = Cores(start_node("--cores", "2", data=tmp_path / "d"))
    assert cores.node.stop(signal.SIGHUP) == 0
    assert (tmp_path / "d" / "cores" / "2" / ".kafka_cleanshutdown").exists()


def test_a_folder_in_use_is_refused_before_any_change(lonely: Any, node: Any) -> None:
    lonely.fails(
        "up",
        "--cores",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(node.data),
        error=f"Another process uses the data folder {node.data}",
    )
    assert not (node.data / "cores").exists()


def test_a_second_command_for_the_same_folder_is_refused(two: Cores, lonely: Any) -> None:
    lonely.fails(
        "up", "--listen", "127.0.0.1:0", "--data", str(two.node.data), error="Another process uses the data folder"
    )
    assert two.node.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--cores", "0"), "0 is not in the range 1<=x<=99"),
        (
            ("--cores", "2", "--set", "cluster.nodes=1@127.0.0.1:1,2@127.0.0.1:2"),
            "--cores is for a single machine",
        ),
        (("--cores", "3", "--listen", "127.0.0.1:65534"), "there are no 3 ports from 65534 on"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(
    lonely: Any, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    lonely.fails("up", "--data", str(tmp_path / "d"), *arguments, code=2, error=text)


@contextmanager
def ports_in_a_row() -> Iterator[int]:
    """A port on which a node can listen, and after it one that is taken; both given by the system."""
    while True:
        with socket.socket() as taken, socket.socket() as first:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1] - 1
            # Bound and not listened on, it is nobody else's; a node, which sets the same option, can still have it.
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                first.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield port
            return


def test_a_taken_port_is_reported(lonely: Any, tmp_path: Path) -> None:
    with ports_in_a_row() as port:
        settings = lonely("up", "--cores", "2", "--data", str(tmp_path / "d"), "--listen", f"127.0.0.1:{port}")
    assert settings.code == 1
    assert f"127.0.0.1:{port + 1} cannot be listened on (address already in use)" in settings.err
    assert "takes 2 ports" in settings.err


def test_lines_have_the_number_of_their_core(tmp_path: Path, lonely: Any) -> None:
    process: subprocess.Popen[bytes] = lonely.start(
        "up", "--cores", "2", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0"
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith(b"stop"):
        assert process.poll() is None
    process.terminate()
    lines = process.communicate(timeout=60)[1].decode().splitlines()
    assert any("  core 2  ready, pid " in line for line in lines)
    assert all("  core 1  " in line or "  core 2  " in line or "  all cores  " in line for line in lines)
    assert process.returncode == 0
