"""Real clients over TLS, with and without a client certificate, against a standalone node."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.config.listeners import LISTEN
from millpond.testing.ports import HOST, free_port
from support.node import Node
from support.tls import Certificates
from support.tls_clients import CLIENTS, JavaTools, Librdkafka, TlsClient

VALUES = [b"%d" % number for number in range(20)]
MAPPED = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/,DEFAULT"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    settings = {"listen.protocol": "SSL", **certificates.server_settings()}
    node = Node(tmp_path_factory.mktemp("encrypted"), settings).start()
    yield node
    node.terminate()


@pytest.fixture(scope="module")
def mutual(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    settings = {
        "listen.protocol": "SSL",
        "super.users": "User:alice;User:node",
        **MAPPED,
        **certificates.server_settings(),
    }
    node = Node(tmp_path_factory.mktemp("mutual"), settings).start()
    yield node
    node.terminate()


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each is JavaTools else pytest.mark.smoke) for each in CLIENTS]
)
def test_clients_over_tls(encrypted: Node, certificates: Certificates, kind: type[TlsClient]) -> None:
    client = kind(certificates.authority, None)
    assert client.write_and_read(encrypted.bootstrap, f"over-tls-{kind.__name__}", VALUES) == VALUES


@pytest.mark.parametrize("kind", CLIENTS)
def test_clients_with_certificates_of_their_own(
    mutual: Node, certificates: Certificates, kind: type[TlsClient]
) -> None:
    client = kind(certificates.authority, certificates.named("alice"))
    assert client.write_and_read(mutual.bootstrap, f"by-certificate-{kind.__name__}", VALUES) == VALUES


def test_a_client_without_a_certificate_gets_nothing(mutual: Node, certificates: Certificates) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    for own in (None, certificates.server):
        # The second certificate is valid, but its user has no permissions.
        admin = AdminClient(Librdkafka(certificates.authority, own).settings(mutual.bootstrap))
        if own is None:
            with pytest.raises(KafkaException):
                admin.list_topics(timeout=3)
    mutual.wait_for_word("connection closed: TLS handshake failed")


def test_a_client_that_speaks_no_tls_gets_nothing(encrypted: Node) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": encrypted.bootstrap}).list_topics(timeout=3)


def test_clients_are_told_the_address_of_the_listener_that_they_came_by(
    certificates: Certificates, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient

    clear, safe = free_port(), free_port()
    settings = {
        "listeners": f"CLEAR://{HOST}:{clear},SAFE://0.0.0.0:{safe}",
        "listener.security.protocol.map": "CLEAR:PLAINTEXT,SAFE:SSL",
        "inter.broker.listener.name": "CLEAR",
        **{f"listener.name.safe.{name}": text for name, text in certificates.server_settings().items()},
    }
    # The default of `listen`: the helper's own value must not appear next to the listeners.
    node = Node(tmp_path, {**settings, "listen": LISTEN.default})
    node.start()
    try:
        for port, how in (
            (clear, {"bootstrap.servers": f"{HOST}:{clear}"}),
            (safe, Librdkafka(certificates.authority, None).settings(f"{HOST}:{safe}")),
        ):
            brokers = AdminClient(how).list_topics(timeout=30).brokers
            assert [(each.host, each.port) for each in brokers.values()] == [(HOST, port)]
    finally:
        node.terminate()


def test_large_records_come_back_as_they_were_sent(encrypted: Node, certificates: Certificates) -> None:
    """Their bytes are read from files, piece by piece."""
    values = [random.Random(number).randbytes(400_000) for number in range(40)]
    client = Librdkafka(certificates.authority, None)
    assert client.write_and_read(encrypted.bootstrap, "large", values) == values


def test_a_new_certificate_counts_without_a_restart(tmp_path: Path) -> None:
    before, after = Certificates(tmp_path / "before"), Certificates(tmp_path / "after")
    own = tmp_path / "own.pem"
    shutil.copy(before.server, own)
    node = Node(tmp_path / "node", {"listen.protocol": "SSL", "ssl.keystore.location": str(own)}).start()
    try:
        reader = Librdkafka(before.authority, None)
        assert reader.write_and_read(node.bootstrap, "first", VALUES) == VALUES
        os.replace(shutil.copy(after.server, tmp_path / "next.pem"), own)
        time.sleep(1.1)
        assert Librdkafka(after.authority, None).write_and_read(node.bootstrap, "second", VALUES) == VALUES
        node.wait_for_word("certificates reloaded")
    finally:
        node.terminate()
