"""Three nodes that authenticate to each other, over TLS and in plaintext; one with another password cannot join."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.testing import Ponds
from support.tls import Certificates

VALUES = [b"%d" % number for number in range(20)]
SECRET = "what only the nodes know"


def settings_of(root: Path, protocol: str) -> dict[str, str]:
    password = root / "node.password"
    password.write_text(SECRET + "\n")
    certificates = Certificates(root / "certificates")
    return {
        "listen.protocol": protocol,
        "super.users": "User:mill;User:admin",
        "inter.broker.sasl.username": "mill",
        "inter.broker.sasl.password.file": str(password),
        **(certificates.server_settings() if protocol == "SASL_SSL" else {}),
    }


def client_settings(root: Path, protocol: str, bootstrap: str) -> dict[str, str]:
    """As the nodes' own user: this cluster has no other."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": protocol.lower(),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "mill",
        "sasl.password": SECRET,
        "ssl.ca.location": str(root / "certificates" / "authority.pem"),
    }


@pytest.fixture(scope="module", params=["SASL_SSL", "SASL_PLAINTEXT"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ponds, dict]]:
    root = tmp_path_factory.mktemp(request.param)
    with Ponds(3, settings=settings_of(root, request.param)) as ponds:
        yield ponds, client_settings(root, request.param, ponds.bootstrap)


def write_and_read(settings: dict[str, str], topic: str) -> list[bytes]:
    from confluent_kafka import Consumer, Producer

    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        result: list[bytes] = []
        while len(result) < len(VALUES):
            message = consumer.poll(60)
            assert message is not None, "nothing came"
            assert message.error() is None, message.error()
            result.append(message.value())
        return result
    finally:
        consumer.close()


def test_what_is_written_is_on_all_nodes(scene: tuple[Ponds, dict]) -> None:
    ponds, settings = scene
    assert write_and_read(settings, "before") == VALUES
    ponds[3].kill()
    assert write_and_read(settings, "while-it-is-away") == VALUES
    ponds.start()
    assert write_and_read(settings, "after") == VALUES


def test_no_secret_is_told(scene: tuple[Ponds, dict]) -> None:
    ponds, _ = scene
    for node in ponds:
        assert not any(SECRET in line for line in node.journal)
