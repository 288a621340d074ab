"""Settings that must be the same on all nodes: the metadata has the value in force, or nodes compare and log."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millpond.config.node import NODE
from millpond.metadata import brokers
from millpond.metadata.decision import Decision
from millpond.metadata.image import ALL_BROKERS, Resource
from millpond.metadata.records import ConfigRecord, ResourceType
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.world.world import SimWorld

IN_SYNC_MIN = NODE.get("min.insync.replicas")
DIFFERS = "differs from the controller's"
NO_EFFECT = "of this node has no effect"


def started(texts: Mapping[str, str]) -> tuple[SimWorld, SimCluster]:
    sim = SimWorld(7)
    cluster = SimCluster(sim, 3, History())
    for node in cluster.nodes.values():
        node.texts.update(texts)
    for node_id in (1, 2, 3):
        assert cluster.start(node_id)
    assert sim.run_until(lambda: cluster.image is not None and len(cluster.image.brokers) == 3, within_ms=30_000)
    return sim, cluster


def restart(sim: SimWorld, cluster: SimCluster, texts: Mapping[str, str]) -> int:
    """Restart a node that is not the controller, with these settings."""
    odd = next(each for each in cluster.nodes if each != cluster.controller_id)
    cluster.nodes[odd].kill()
    cluster.nodes[odd].texts.update(texts)
    assert sim.run_until(lambda: cluster.start(odd), within_ms=30_000)
    sim.run_for(10_000)
    return odd


def logged(cluster: SimCluster, odd: int, text: str) -> dict[bool, list[str]]:
    """What the node that differs (True) and the others log."""
    lines: dict[bool, list[str]] = {True: [], False: []}
    for node_id, node in cluster.nodes.items():
        lines[node_id == odd] += [line for line in node.journal_lines if text in line]
    return lines


def in_force(cluster: SimCluster) -> set[object]:
    return {node.broker.layers.effective(IN_SYNC_MIN).value for node in cluster.nodes.values()}


@pytest.mark.parametrize(("name", "value"), [("unclean.leader.election.enable", "true"), ("flush.ack", "always")])
def test_a_node_that_was_started_with_another_value_says_so(name: str, value: str) -> None:
    sim, cluster = started({})
    odd = restart(sim, cluster, {name: value})
    lines = logged(cluster, odd, DIFFERS)
    assert len(lines[True]) == 1
    assert f"here={value}" in lines[True][0]
    assert f"millpond config set node all {name}=VALUE" in lines[True][0]
    assert not lines[False]


@pytest.mark.parametrize(
    ("name", "value"), [("broker.heartbeat.interval.ms", "600"), ("broker.session.timeout.ms", "9000")]
)
def test_a_node_whose_leases_are_of_another_length_says_so(name: str, value: str) -> None:
    sim, cluster = started({})
    odd = restart(sim, cluster, {name: value})
    lines = logged(cluster, odd, DIFFERS)
    assert len(lines[True]) == 1
    assert name in lines[True][0]
    assert f"here={value}" in lines[True][0]
    assert "on all nodes" in lines[True][0]
    assert not lines[False]


def test_nodes_that_agree_say_nothing() -> None:
    sim, cluster = started({})
    odd = restart(sim, cluster, {"num.partitions": "3"})
    assert not any(logged(cluster, odd, DIFFERS).values())
    assert not any(logged(cluster, odd, NO_EFFECT).values())


@pytest.mark.parametrize(("at_first", "later"), [("2", "1"), ("1", "2"), ("1", "3")])
def test_min_insync_replicas_of_the_first_controller_is_the_cluster_s(at_first: str, later: str) -> None:
    sim, cluster = started({"min.insync.replicas": at_first})
    odd = restart(sim, cluster, {"min.insync.replicas": later})
    assert in_force(cluster) == {int(at_first)}
    lines = logged(cluster, odd, NO_EFFECT)
    assert len(lines[True]) == 1
    assert f"here={later}" in lines[True][0]
    assert f"cluster={at_first}" in lines[True][0]
    assert "millpond config set node all min.insync.replicas=" in lines[True][0]
    assert not lines[False]


def test_nodes_that_are_formed_with_different_values_use_one() -> None:
    sim = SimWorld(7)
    cluster = SimCluster(sim, 3, History())
    for node_id, node in cluster.nodes.items():
        node.texts["min.insync.replicas"] = str(node_id)
        assert cluster.start(node_id)
    assert sim.run_until(lambda: cluster.image is not None and len(cluster.image.brokers) == 3, within_ms=30_000)
    sim.run_for(5_000)
    (value,) = in_force(cluster)
    assert value == int(cluster.nodes[cluster.controller_id or 0].texts["min.insync.replicas"])
    lines = [line for node in cluster.nodes.values() for line in node.journal_lines if NO_EFFECT in line]
    assert len(lines) == 2


def test_a_value_that_one_node_had_before_the_cluster_has_no_effect() -> None:
    sim, cluster = started({})
    kept = ConfigRecord(ResourceType.BROKER, "2", "min.insync.replicas", "1")
    cluster.nodes[cluster.controller_id or 0].broker.controller.submit(lambda _: Decision((kept,), None))
    sim.run_for(5_000)
    assert cluster.image is not None
    assert cluster.image.config_of(Resource(ResourceType.BROKER, "2"))["min.insync.replicas"] == "1"
    assert in_force(cluster) == {2}


def test_a_cluster_that_an_earlier_version_formed_compares_values_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_cluster_wide", lambda *_: [])
    sim, cluster = started({})
    monkeypatch.undo()
    odd = restart(sim, cluster, {"min.insync.replicas": "1"})
    assert cluster.image is not None
    assert "min.insync.replicas" not in cluster.image.config_of(ALL_BROKERS)
    lines = logged(cluster, odd, DIFFERS)
    assert len(lines[True]) == 1
    assert "min.insync.replicas" in lines[True][0]
    assert in_force(cluster) == {1, 2}
