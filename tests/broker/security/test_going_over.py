"""A running cluster moves from one listener to another, node by node, and no node or client is ever locked out."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.sim.clients.client import SimClient
from millpond.sim.node import SimNode
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

CLEAR, SAFE = 9092, 9093
NUMBERS = (1, 2, 3)
KEYS = {"ssl.keystore.location": "CN=node", "ssl.truststore.location": "/ca.pem"}
LOGIN = {"inter.broker.sasl.username": "node", "inter.broker.sasl.password": "sesame"}
PROTOCOLS: dict[str, dict[str, str]] = {
    "SSL": {"ssl.client.auth": "required", **KEYS},
    "SASL_PLAINTEXT": LOGIN,
    "SASL_SSL": {**LOGIN, **KEYS},
}
SUPER = "User:CN=node;User:node"
BEFORE, BESIDE, SWITCHED, ALONE = "before", "beside", "switched", "alone"
"""The steps: plaintext; a secure listener added; nodes use the secure listener; the plaintext listener removed."""


def texts_of(number: int, protocol: str, step: str, *, is_listed: bool) -> dict[str, str]:
    clear, safe = f"PLAINTEXT://host-{number}:{CLEAR}", f"{protocol}://host-{number}:{SAFE}"
    port = CLEAR if step in (BEFORE, BESIDE) else SAFE
    nodes = ",".join(f"{each}@host-{each}:{port}" for each in NUMBERS)
    texts = {"node.id": str(number), **({"cluster.nodes": nodes} if is_listed else {})}
    if step == BEFORE:
        return {**texts, "listeners": clear}
    return {
        **texts,
        **PROTOCOLS[protocol],
        "listeners": safe if step == ALONE else f"{clear},{safe}",
        "inter.broker.listener.name": "PLAINTEXT" if step == BESIDE else protocol,
        # The plaintext listener authenticates no one: until it is removed, all who reach it may do everything, as
        # before.
        "super.users": SUPER if step == ALONE else f"{SUPER};User:ANONYMOUS",
    }


class MigratingCluster:
    def __init__(self, protocol: str, *, is_listed: bool) -> None:
        self.sim = SimWorld(11)
        self.protocol = protocol
        self.is_listed = is_listed
        self.nodes: dict[int, SimNode] = {}
        for number in NUMBERS:
            texts = texts_of(number, protocol, BEFORE, is_listed=is_listed)
            if not is_listed and number > 1:
                texts["cluster.contacts"] = f"1@host-1:{CLEAR}"
            self.nodes[number] = SimNode(self.sim, f"host-{number}", texts)
            del self.nodes[number].texts["listen"]
            assert self.nodes[number].start(), self.nodes[number].journal_lines
            if not is_listed:
                self.wait(lambda number=number: self.active() == set(range(1, number + 1)))
        self.wait(lambda: self.active() == set(NUMBERS))

    def wait(self, condition: Any) -> None:
        assert self.sim.run_until(condition, within_ms=60_000), self.story()

    def story(self) -> str:
        lines = [line for node in self.nodes.values() for line in node.journal_lines[-10:]]
        return "\n".join([*lines, *(str(fault) for _, fault in self.sim.network.faults[-10:])])

    def controller(self) -> SimNode | None:
        up = [each for each in self.nodes.values() if each.is_up and each.broker.controller.is_active]
        return max(up, key=lambda each: each.broker.controller.leader_epoch, default=None)

    def active(self) -> set[int]:
        leading = self.controller()
        return set() if leading is None else {each for each in NUMBERS if leading.broker.image.is_active(each)}

    def in_sync(self, topic: str) -> set[int]:
        leading = self.controller()
        partition = None if leading is None else leading.broker.image.partition(topic, 0)
        return set() if partition is None else set(partition.isr)

    def ask(self, number: int, request: m.Message, version: int) -> Any:
        client = SimClient(self.sim.network, f"host-{number}", CLEAR, "client", timeout_ms=20_000)
        replies: list[Any] = []
        client.send(request, version, replies.append)
        self.wait(lambda: bool(replies))
        client.disconnect()
        return replies[0]

    def make_topic(self, number: int, name: str) -> None:
        """Create a topic through this node, which forwards the request to the controller."""
        kind = m.CreateTopicsRequest.CreatableTopic
        wanted = kind(name=name, num_partitions=1, replication_factor=3, assignments=[], configs=[])
        reply = self.ask(number, m.CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 5)
        assert [each.error_code for each in reply.topics] == [ErrorCode.NONE], (number, name, reply)

    def take(self, step: str) -> None:
        """Restart the nodes one after the other with the settings of the next step."""
        for number, node in self.nodes.items():
            node.stop()
            self.wait(lambda node=node: not node.is_up)
            node.texts = {
                "data.folder": node.texts["data.folder"],
                **texts_of(number, self.protocol, step, is_listed=self.is_listed),
            }
            assert node.start(), node.journal_lines
            self.wait(lambda: self.active() == set(NUMBERS))
            self.wait(lambda: self.in_sync("orders") == set(NUMBERS))
            if step != ALONE:
                for each in NUMBERS:
                    self.make_topic(each, f"{step}-{number}-{each}")
                self.wait(lambda name=f"{step}-{number}-1": self.in_sync(name) == set(NUMBERS))


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nodes_go_over_to_a_safe_listener_one_after_the_other(protocol: str, is_listed: bool) -> None:
    cluster = MigratingCluster(protocol, is_listed=is_listed)
    cluster.make_topic(1, "orders")
    for step in (BESIDE, SWITCHED, ALONE):
        cluster.take(step)
    # Plaintext connections are no longer accepted, and every connection between nodes is secure.
    cluster.sim.run_for(3_000)
    connections = [each for node in cluster.nodes.values() for each in node.broker.connections]
    assert {each.link.listener for each in connections} == {protocol}
    assert all(each.may_be_node for each in connections)


def test_a_plaintext_connection_beside_a_secure_listener_is_no_node() -> None:
    """When User:ANONYMOUS is not among the super users, which is the intermediate step."""
    cluster = MigratingCluster("SSL", is_listed=True)
    cluster.make_topic(1, "orders")
    for step in (BESIDE, SWITCHED):
        cluster.take(step)
    node = cluster.nodes[1]
    node.stop()
    cluster.wait(lambda: not node.is_up)
    node.texts["super.users"] = SUPER
    assert node.start()
    cluster.wait(lambda: cluster.active() == set(NUMBERS))
    stranger = SimClient(cluster.sim.network, "host-1", CLEAR, "millpond-node-2", timeout_ms=20_000)
    replies: list[Any] = []
    stranger.send(m.AllocateProducerIdsRequest(broker_id=2, broker_epoch=1), 0, replies.append)
    partition = m.VoteRequest.PartitionData(replica_epoch=1 << 20, replica_id=2, last_offset=1 << 40)
    topic = m.VoteRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    stranger.send(m.VoteRequest(topics=[topic]), 0, replies.append)
    cluster.wait(lambda: len(replies) == 2)
    assert [each.error_code for each in replies] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
