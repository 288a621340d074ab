"""A node connects to one that requires authentication: it logs in first, without involving the caller."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.broker.data_folder.identity import Misconfigured
from millpond.broker.peers.node_login import NodeLogin
from millpond.broker.peers.node_network import NodeNetwork
from millpond.broker.peers.requester import Requester, RequestLost
from millpond.broker.security.directory import NodeUser
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

TIMEOUT_MS = 20_000
LOGIN = {
    "listen.protocol": "SASL_PLAINTEXT",
    "inter.broker.sasl.username": "mill",
    "inter.broker.sasl.password": "sesame",
    "super.users": "User:mill",
}


class NodeAndCaller:
    """A node, and a caller on another host."""

    def __init__(self, password: str | None = "sesame", texts: dict[str, str] | None = None) -> None:
        self.sim = SimWorld(3)
        self.node = SimNode(self.sim, texts=LOGIN | (texts or {}))
        assert self.node.start(), self.node.journal_lines
        asker = self.sim.start("asker")
        network: Any = asker.network
        if password is not None:
            login = NodeLogin(
                NodeUser("mill", password), "millpond-node-2", lambda: f"{asker.entropy.below(1 << 99)}"
            )
            network = NodeNetwork(network, None, login)
        self.requester = Requester(network, asker.clock, "node", self.node.port, "millpond-node-2")
        self.heard: list[Any] = []

    def ask(self) -> None:
        request = m.MetadataRequest(topics=[])
        self.requester.ask(request, 9, TIMEOUT_MS).then(self.heard.append, self.heard.append)

    def heard_all(self, count: int) -> bool:
        return self.sim.run_until(lambda: len(self.heard) == count, within_ms=TIMEOUT_MS + 1_000)


def test_what_is_asked_waits_for_the_login_and_is_answered_in_order() -> None:
    pair = NodeAndCaller()
    for _ in range(5):
        pair.ask()
    assert pair.heard_all(5)
    assert [type(each) for each in pair.heard] == [m.MetadataResponse] * 5
    assert pair.requester.connections_made == 1
    (connection,) = pair.node.broker.connections
    assert str(connection.principal) == "User:mill"
    assert connection.may_be_node
    pair.ask()
    assert pair.heard_all(6)


def test_its_session_does_not_end_as_those_of_clients_do() -> None:
    pair = NodeAndCaller(texts={"connections.max.reauth.ms": "1000"})
    pair.ask()
    assert pair.heard_all(1)
    pair.sim.run_for(5_000)
    pair.ask()
    assert pair.heard_all(2)
    assert isinstance(pair.heard[1], m.MetadataResponse)
    assert pair.requester.connections_made == 1


@pytest.mark.parametrize("password", ["mustard", None])
def test_without_the_password_nothing_is_answered(password: str | None) -> None:
    pair = NodeAndCaller(password)
    pair.ask()
    assert pair.heard_all(1)
    assert isinstance(pair.heard[0], RequestLost)
    lines = [*map(str, pair.sim.network.faults), *pair.node.journal_lines]
    assert not any("mustard" in line or "sesame" in line for line in lines)


def test_a_node_that_ends_in_the_middle_of_a_login_loses_what_waits() -> None:
    pair = NodeAndCaller()
    pair.ask()
    pair.sim.run_for(4)
    pair.node.kill()
    assert pair.heard_all(1)
    assert isinstance(pair.heard[0], RequestLost)


def test_three_nodes_that_log_in_to_each_other_become_a_cluster() -> None:
    sim = SimWorld(5)
    nodes = [
        SimNode(
            sim,
            f"host-{number}",
            {**LOGIN, "node.id": str(number), "cluster.nodes": ",".join(f"{n}@host-{n}:9092" for n in (1, 2, 3))},
        )
        for number in (1, 2, 3)
    ]
    for each in nodes:
        assert each.start(), each.journal_lines
    assert sim.run_until(lambda: all(each.broker.ready.ended for each in nodes), within_ms=30_000)
    assert {len(each.broker.image.brokers) for each in nodes} == {3}


def test_one_with_another_password_stays_outside() -> None:
    sim = SimWorld(5)
    members = ",".join(f"{n}@host-{n}:9092" for n in (1, 2, 3))
    nodes = [
        SimNode(sim, f"host-{n}", {**LOGIN, "node.id": str(n), "cluster.nodes": members, "cluster.voters": "1,2"})
        for n in (1, 2, 3)
    ]
    nodes[2].texts["inter.broker.sasl.password"] = "mustard"
    for each in nodes:
        assert each.start(), each.journal_lines
    assert sim.run_until(lambda: all(each.broker.ready.ended for each in nodes[:2]), within_ms=30_000)
    sim.run_for(10_000)
    assert set(nodes[0].broker.image.brokers) == {1, 2}
    assert not nodes[2].broker.ready.ended
    faults = [str(fault) for _, fault in sim.network.faults]
    assert any("is not let in" in each or "another password" in each for each in faults), faults


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"super.users": ""}, "super.users"),
        ({"inter.broker.sasl.username": "", "cluster.nodes": "1@a:1,2@b:1"}, "inter.broker.sasl.username"),
        ({"inter.broker.sasl.password": ""}, "inter.broker.sasl.password.file"),
    ],
)
def test_a_node_that_could_not_be_let_in_does_not_start(texts: dict[str, str], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        SimNode(SimWorld(1), texts=LOGIN | texts).start()


def certified(number: int, name: str = "CN=node") -> dict[str, str]:
    """In the simulated world the file's name serves as the name in the certificate."""
    return {
        "node.id": str(number),
        "cluster.nodes": ",".join(f"{n}@host-{n}:9092" for n in (1, 2, 3)),
        "cluster.voters": "1,2",
        "listen.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.keystore.location": name,
        "ssl.truststore.location": "/ca.pem",
        "super.users": "User:CN=node",
    }


@pytest.mark.parametrize(("name", "members"), [("CN=node", {1, 2, 3}), ("CN=stranger", {1, 2})])
def test_nodes_with_certificates_become_a_cluster_and_strangers_stay_outside(name: str, members: set[int]) -> None:
    sim = SimWorld(7)
    nodes = [SimNode(sim, f"host-{n}", certified(n)) for n in (1, 2)]
    nodes.append(SimNode(sim, "host-3", certified(3, name)))
    for each in nodes:
        assert each.start(), each.journal_lines
    assert sim.run_until(
        lambda: all(each.broker.ready.ended for each in nodes if each.broker.node_id in members), within_ms=30_000
    )
    sim.run_for(10_000)
    assert set(nodes[0].broker.image.brokers) == members
