"""Widely used clients with SCRAM over TLS and with a certificate, against one node and a cluster."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from millpond.testing import Pond, Ponds
from millpond.testing.clients import Clients
from support.kafka_tools import kafka_tool

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[True, "certificates"], ids=["scram", "certificate"])
def secure(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=[1, 3], ids=["node", "cluster"])
def cluster(request: pytest.FixtureRequest, secure: Any) -> Iterator[Clients]:
    if request.param == 1:
        with Pond(mode="process", secure=secure) as pond:
            yield pond
    else:
        with Ponds(request.param, secure=secure) as ponds:
            yield ponds


def keywords(cluster: Clients) -> dict[str, Any]:
    """The same settings for kafka-python; aiokafka takes the files in a TLS context."""
    settings = cluster.login_settings()
    told = {
        "bootstrap_servers": settings["bootstrap.servers"].split(","),
        "security_protocol": settings["security.protocol"],
        "ssl_cafile": settings["ssl.ca.location"],
    }
    if cluster.by_certificate:
        return {
            **told,
            "ssl_certfile": settings["ssl.certificate.location"],
            "ssl_keyfile": settings["ssl.key.location"],
        }
    return {
        **told,
        "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"],
        "sasl_plain_password": settings["sasl.password"],
    }


def test_librdkafka(cluster: Clients) -> None:
    topic = cluster.new_topic()
    producer = Producer({**cluster.login_settings(), "log_level": 0})
    producer.produce(topic, b"tea")
    assert producer.flush(30) == 0
    reads = {"group.id": f"group-{topic}", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**cluster.login_settings(), **reads})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"tea"
    consumer.close()


def test_kafka_python(cluster: Clients) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic = cluster.new_topic()
    producer = KafkaProducer(**keywords(cluster))
    producer.send(topic, b"tea").get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        group_id=f"group-{topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
        **keywords(cluster),
    )
    assert next(consumer).value == b"tea"
    consumer.close()


def test_aiokafka(cluster: Clients) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = cluster.new_topic()
    told = keywords(cluster)
    context = ssl.create_default_context(cafile=told.pop("ssl_cafile"))
    if cluster.by_certificate:
        context.load_cert_chain(told.pop("ssl_certfile"), told.pop("ssl_keyfile"))
    told["ssl_context"] = context

    async def play() -> bytes | None:
        async with AIOKafkaProducer(**told) as producer:
            await producer.send_and_wait(topic, b"tea")
        async with AIOKafkaConsumer(
            topic, group_id=f"group-{topic}", auto_offset_reset="earliest", **told
        ) as consumer:
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    assert asyncio.run(play()) == b"tea"


@pytest.fixture(scope="module")
def properties(cluster: Clients, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same settings for Java."""
    assert cluster.security is not None
    if not cluster.by_certificate:
        return cluster.security.client_file
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": cluster.security.authority_file,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": cluster.security.certificate_of("admin"),
    }
    path = tmp_path_factory.mktemp("java") / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def run_java(name: str, *words: str, given: str | None = None) -> str:
    done = subprocess.run(
        [*kafka_tool(name), *words], input=given, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_java(cluster: Clients, properties: Path) -> None:
    topic = cluster.new_topic()
    at = ("--bootstrap-server", cluster.bootstrap, "--command-config", str(properties))
    tools = "org.apache.kafka.tools"
    assert topic in run_java(f"{tools}.TopicCommand", *at, "--list")
    run_java(f"{tools}.ConsoleProducer", *at, "--topic", topic, given="tea\n")
    read = run_java(
        f"{tools}.consumer.ConsoleConsumer",
        *at,
        *("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000"),
    )
    assert read == "tea\n"
