"""A cluster for tests: its nodes, and what can be done to the ways between them and to clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from millpond.testing import Ponds, TooFew, ponds

pytestmark = pytest.mark.boundary


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ponds]:
    with ponds(nodes=3) as made:
        yield made


def values(cluster: Ponds, topic: str, count: int) -> list[bytes | None]:
    return [message.value for message in cluster.consume(topic, count, timeout=30)]


def within(seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.mark.smoke
def test_records_are_on_three_nodes_and_survive_the_death_of_any(cluster: Ponds) -> None:
    topic = cluster.new_topic()
    cluster.produce(topic, "one")
    cluster.wait_until_in_sync(topic)
    leader = cluster.leader(topic)
    leader.kill()
    within(20, lambda: cluster.leader(topic) is not leader)
    assert values(cluster, topic, 1) == [b"one"]
    cluster.forget_clients()
    cluster.produce(topic, "two")
    leader.start()
    cluster.wait_until_in_sync(topic)
    assert values(cluster, topic, 2) == [b"one", b"two"]


@pytest.mark.parametrize("how", ["cut", "reject"])
def test_an_isolated_leader_accepts_no_writes(cluster: Ponds, how: str) -> None:
    topic = cluster.new_topic()
    cluster.wait_until_in_sync(topic)
    leader = cluster.leader(topic)
    (cluster.cut if how == "cut" else cluster.reject)(leader.node_id)
    other = next(node.node_id for node in cluster if node is not leader)
    within(30, lambda: cluster.leader(topic, seen_by=other) is not leader)
    cluster.forget_clients()
    cluster.produce(topic, "after")
    cluster.heal()
    cluster.wait_until_in_sync(topic)
    assert values(cluster, topic, 1) == [b"after"]


def test_clients_can_be_cut_from_a_node(cluster: Ponds) -> None:
    topic = cluster.new_topic()
    cluster.produce(topic, "one")
    cluster.cut_clients(cluster.leader(topic).node_id)
    cluster.forget_clients()
    with pytest.raises(TooFew):
        cluster.consume(topic, 1, timeout=1)
    cluster.heal()
    assert values(cluster, topic, 1) == [b"one"]


def test_all_at_once_may_die(cluster: Ponds) -> None:
    topic = cluster.new_topic()
    cluster.produce(topic, "one")
    cluster.kill_all()
    cluster.start()
    assert values(cluster, topic, 1) == [b"one"]
