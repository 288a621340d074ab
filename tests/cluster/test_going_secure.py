"""From an insecure cluster to a secure one, node by node and under load, following docs/security.md."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from millpond.metadata.initial_users import credential_of, written
from millpond.testing.ports import HOST, free_port
from millpond.testing.process_node import ProcessNode
from support.steady_writer import SteadyWriter, read_topic
from support.tls import Certificates

NUMBERS = (1, 2, 3)
TOPIC = "orders"
PARTITIONS = 3
SECRET, PASSWORD = "what only the nodes know", "what only the shop knows"
SYNC_SECONDS = 60.0


class Cluster:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.clear = {number: free_port() for number in NUMBERS}
        self.safe = {number: free_port() for number in NUMBERS}
        self.journals: dict[int, list[str]] = {number: [] for number in NUMBERS}
        self.certificates = Certificates(root / "certificates")
        (root / "node.password").write_text(SECRET)
        (root / "users").write_text(written([credential_of("shop", PASSWORD, b"salt" * 8)]))
        self.nodes = {number: ProcessNode(self.before(number), self._journal_of(number)) for number in NUMBERS}

    def _journal_of(self, number: int) -> Any:
        return lambda event, **_: self.journals[number].append(event)

    # The settings of each step.

    def before(self, number: int) -> dict[str, str]:
        return {
            "node.id": str(number),
            "data.folder": str(self.root / f"node-{number}"),
            "listeners": f"PLAINTEXT://{HOST}:{self.clear[number]}",
            "cluster.nodes": self._addresses(self.clear),
            "flush.ack": "never",
        }

    def beside(self, number: int) -> dict[str, str]:
        return {
            **self.before(number),
            **self.certificates.server_settings(),
            "listeners": f"PLAINTEXT://{HOST}:{self.clear[number]},SASL_SSL://{HOST}:{self.safe[number]}",
            "inter.broker.listener.name": "PLAINTEXT",
            "super.users": "User:mill;User:ANONYMOUS",
            "inter.broker.sasl.username": "mill",
            "inter.broker.sasl.password.file": str(self.root / "node.password"),
            "initial.users.file": str(self.root / "users"),
        }

    def switched(self, number: int) -> dict[str, str]:
        texts = {"inter.broker.listener.name": "SASL_SSL", "cluster.nodes": self._addresses(self.safe)}
        return {**self.beside(number), **texts}

    def alone(self, number: int) -> dict[str, str]:
        texts = {"listeners": f"SASL_SSL://{HOST}:{self.safe[number]}", "super.users": "User:mill"}
        return {**self.switched(number), **texts}

    @staticmethod
    def _addresses(ports: dict[int, int]) -> str:
        return ",".join(f"{number}@{HOST}:{port}" for number, port in ports.items())

    # The procedure.

    def start(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_ready()

    def take(self, step: Any, settings: dict[str, Any]) -> None:
        """Restart each node with the settings of this step, once all are in sync."""
        admin = AdminClient(settings)
        for number, node in self.nodes.items():
            self.wait_until_in_sync(admin)
            node.stop()
            node.texts = step(number)
            node.start()
        self.wait_until_in_sync(admin)

    def wait_until_in_sync(self, admin: AdminClient) -> None:
        deadline = time.monotonic() + SYNC_SECONDS
        known: Any = None
        while time.monotonic() < deadline:
            known = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
            if known and all(sorted(each.isrs) == list(NUMBERS) for each in known.values()):
                return
            time.sleep(0.1)
        raise TimeoutError({index: each.isrs for index, each in known.items()}, self.journals)

    def settings(self, ports: dict[int, int]) -> dict[str, Any]:
        return {"bootstrap.servers": ",".join(f"{HOST}:{port}" for port in ports.values())}

    def safe_settings(self, user: str = "shop", password: str = PASSWORD) -> dict[str, Any]:
        return {
            **self.settings(self.safe),
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.certificates.authority),
        }

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_an_insecure_cluster_becomes_a_secure_one_while_it_is_written_to(cluster: Cluster) -> None:
    cluster.start()
    clear = cluster.settings(cluster.clear)
    admin = AdminClient(clear)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(60)
    load = SteadyWriter(clear, TOPIC, PARTITIONS, "clear")

    cluster.take(cluster.beside, clear)
    # Authorization is on now. The ACLs of the programs are created before they move to the secure listener.
    rights = [
        (ResourceType.TOPIC, TOPIC, AclOperation.ALL),
        (ResourceType.GROUP, "check", AclOperation.READ),
    ]
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:shop", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in rights
    ]
    for made in admin.create_acls(bindings).values():
        made.result(60)
    cluster.take(cluster.switched, clear)
    load.end()

    safe_load = SteadyWriter(cluster.safe_settings(), TOPIC, PARTITIONS, "safe")
    cluster.take(cluster.alone, cluster.safe_settings())
    safe_load.end()

    assert not load.faults
    assert not safe_load.faults
    acknowledged = [*load.acknowledged, *safe_load.acknowledged]
    assert len(load.acknowledged) > 1_000
    assert len(safe_load.acknowledged) > 100
    records = read_topic(cluster.safe_settings(), TOPIC, PARTITIONS, len(acknowledged))
    assert sorted(records) == sorted(acknowledged), "all of it, and nothing twice"

    # The shop has exactly its own permissions, and the plaintext listener is gone.
    topics = AdminClient(cluster.safe_settings()).list_topics(timeout=30).topics
    assert list(topics) == [TOPIC]
    with pytest.raises(Exception, match=r"_TRANSPORT|transport"):
        AdminClient({**clear, "socket.timeout.ms": 2_000}).list_topics(timeout=5)
