"""Quotas with real clients: they are throttled, they wait, the rate holds, and clients without a quota are not held
up.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from millpond.base.errors import ErrorCode
from millpond.metadata.initial_users import credential_of, written
from millpond.metadata.scram import Mechanism
from millpond.wire import messages as m
from support.kafka_tools import SECONDS_MAX, kafka_tool
from support.node import Node
from support.patience import with_time
from support.raw import Raw

Alter = m.AlterClientQuotasRequest

RATE = 400_000
SIZE = 10_000
COUNT = 160
"""Messages that take 4 s at this rate; one second's worth is available at once."""


@pytest.fixture
def pond(make_node: Callable[..., Node]) -> Node:
    return make_node({"quota.window.num": "2", "controller.quota.window.num": "1"})


@pytest.fixture
def asked(pond: Node) -> Iterator[Raw]:
    with Raw(pond.port) as raw:
        raw.create_topic("pond")
        yield raw


def set_quota(raw: Raw, entity: dict[str, str | None], **values: float) -> None:
    entry = Alter.EntryData(
        entity=[Alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[Alter.OpData(key=key, value=value, remove=False) for key, value in values.items()],
    )
    (reply,) = raw.call(Alter(entries=[entry]), 1).entries
    assert reply.error_code == ErrorCode.NONE, reply.error_message


def write(pond: Node, client_id: str, **options: object) -> tuple[float, list[float]]:
    """How long all messages took, and each throttle time that librdkafka was given."""
    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": pond.bootstrap,
            "client.id": client_id,
            "batch.size": 50_000,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
            **options,
        }
    )
    failures: list[object] = []
    began = time.monotonic()
    for _ in range(COUNT):
        producer.produce("pond", b"x" * SIZE, on_delivery=lambda error, _: failures.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    took = time.monotonic() - began
    producer.poll(0.1)
    assert failures == [None] * COUNT
    return took, throttled


def test_librdkafka_writes_no_faster_than_its_quota_and_others_are_not_held_up(pond: Node, asked: Raw) -> None:
    set_quota(asked, {"client-id": "slow"}, producer_byte_rate=RATE)
    quick: list[float] = []
    beside = threading.Thread(target=lambda: quick.append(write(pond, "quick")[0]))
    beside.start()
    took, throttled = write(pond, "slow")
    beside.join()
    expected = COUNT * SIZE / RATE - 1
    assert expected * 0.8 < took < expected * 2 + 5, took
    assert throttled, "librdkafka was never told to wait"
    assert quick[0] < took / 2, "clients without a quota are faster"
    assert len(asked.read_all("pond")) == 2 * COUNT


@with_time
def test_librdkafka_reads_no_faster_than_its_quota_and_misses_nothing(pond: Node, asked: Raw) -> None:
    write(pond, "writer")
    set_quota(asked, {"client-id": "slow"}, consumer_byte_rate=RATE)
    took = {name: read(pond, name) for name in ("quick", "slow")}
    expected = COUNT * SIZE / RATE - 1
    assert took["slow"] > expected * 0.7, took
    assert took["quick"] < took["slow"]


def read(pond: Node, client_id: str) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": pond.bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 100_000,
        }
    )
    consumer.subscribe(["pond"])
    offsets: list[int] = []
    deadline = time.monotonic() + 60
    began = 0.0
    while len(offsets) < COUNT:
        assert time.monotonic() < deadline, f"{client_id} got {len(offsets)}"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            began = began or time.monotonic()
            offsets.append(message.offset())
    took = time.monotonic() - began
    consumer.close()
    assert offsets == list(range(COUNT))
    return took


@with_time
def test_kafka_python_waits_as_well(pond: Node, asked: Raw) -> None:
    set_quota(asked, {"client-id": "python"}, producer_byte_rate=RATE, consumer_byte_rate=RATE)
    producer = KafkaProducer(bootstrap_servers=pond.bootstrap, client_id="python", batch_size=50_000)
    began = time.monotonic()
    for _ in range(COUNT):
        producer.send("pond", b"x" * SIZE)
    producer.flush(60)
    took = time.monotonic() - began
    producer.close()
    expected = COUNT * SIZE / RATE - 1
    assert took > expected * 0.8
    consumer = KafkaConsumer(
        "pond",
        bootstrap_servers=pond.bootstrap,
        client_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
        max_partition_fetch_bytes=100_000,
    )
    began = time.monotonic()
    seen = [message.offset for _, message in zip(range(COUNT), consumer, strict=False)]
    took = time.monotonic() - began
    consumer.close()
    assert seen == list(range(COUNT))
    assert took > expected * 0.7


def test_librdkafka_makes_topics_no_faster_than_its_quota(pond: Node, asked: Raw) -> None:
    """Its version of CreateTopics lacks the error code: the topic is created, and the client is throttled
    afterwards.
    """
    set_quota(asked, {"client-id": "maker"}, controller_mutation_rate=2)
    admin = AdminClient({"bootstrap.servers": pond.bootstrap, "client.id": "maker"})
    began = time.monotonic()
    for future in admin.create_topics([NewTopic(f"t{number}", 2, 1) for number in range(4)]).values():
        future.result(20)
    admin.create_topics([NewTopic("later", 2, 1)])["later"].result(20)
    assert time.monotonic() - began > 2.5


@with_time
@pytest.mark.slow
def test_kafkas_own_tool_sets_shows_and_takes_away(pond: Node, asked: Raw) -> None:
    tool = kafka_tool("kafka.admin.ConfigCommand")

    def run(*words: str) -> str:
        done = subprocess.run(
            [*tool, "--bootstrap-server", pond.bootstrap, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    alice_app = (
        "--entity-type",
        "users",
        "--entity-name",
        "alice",
        "--entity-type",
        "clients",
        "--entity-name",
        "app",
    )
    run("--alter", "--add-config", "producer_byte_rate=1024,request_percentage=50", *alice_app)
    run("--alter", "--add-config", "consumer_byte_rate=2048", "--entity-type", "clients", "--entity-default")
    run("--alter", "--add-config", "connection_creation_rate=7", "--entity-type", "ips", "--entity-name", "127.0.0.1")
    output = run("--describe", *alice_app)
    assert "producer_byte_rate=1024" in output
    assert "request_percentage=50" in output
    assert "consumer_byte_rate=2048" in run("--describe", "--entity-type", "clients", "--entity-default")
    assert "connection_creation_rate=7" in run("--describe", "--entity-type", "ips")
    run("--alter", "--delete-config", "producer_byte_rate,request_percentage", *alice_app)
    assert "producer_byte_rate" not in run("--describe", *alice_app)


PASSWORD = "open sesame"


@pytest.fixture
def guarded(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    """A node with the users admin and bob, who may both do everything."""
    users = [credential_of(user, PASSWORD, b"salt" * 8, Mechanism.SCRAM_SHA_256) for user in ("admin", "bob")]
    (tmp_path / "users").write_text(written(users))
    node = make_node(
        {
            "listen.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "super.users": "User:admin;User:bob",
            "initial.users.file": str(tmp_path / "users"),
            "quota.window.num": "2",
        }
    )
    node.wait_for_word("the cluster has its first users")
    return node


@with_time
@pytest.mark.slow
def test_the_java_client_waits_and_misses_nothing(pond: Node, asked: Raw) -> None:
    set_quota(asked, {"client-id": None}, producer_byte_rate=RATE, consumer_byte_rate=RATE)

    def run(name: str, *words: str) -> tuple[float, str]:
        began = time.monotonic()
        done = subprocess.run(
            [*kafka_tool(f"org.apache.kafka.tools.{name}"), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return time.monotonic() - began, done.stdout

    size = f"--topic pond --num-records {COUNT} --record-size {SIZE} --throughput -1".split()
    took, told = run(
        "ProducerPerformance", *size, "--producer-props", f"bootstrap.servers={pond.bootstrap}", "client.id=java"
    )
    assert f"{COUNT} records sent" in told
    expected = COUNT * SIZE / RATE - 1
    assert took > expected * 0.8
    took, told = run(
        "ConsumerPerformance", *f"--bootstrap-server {pond.bootstrap} --topic pond --messages {COUNT}".split()
    )
    assert took > expected * 0.7
    assert f", {COUNT}," in told, told
