"""Settings that must be the same on every node: one that differs is logged when the node registers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.records.history import History
from millpond.sim.world.world import SimWorld


def journals(texts: Mapping[str, str]) -> dict[bool, list[str]]:
    """What three nodes log about settings that differ: the one that is started again with these, and the others."""
    sim = SimWorld(7)
    cluster = SimCluster(sim, 3, History())
    for node_id in (1, 2, 3):
        assert cluster.start(node_id)
    assert sim.run_until(lambda: cluster.image is not None and len(cluster.image.brokers) == 3, within_ms=30_000)
    odd = next(each for each in cluster.nodes if each != cluster.controller_id)
    cluster.nodes[odd].kill()
    cluster.nodes[odd].texts.update(texts)
    assert sim.run_until(lambda: cluster.start(odd), within_ms=30_000)
    sim.run_for(10_000)
    told: dict[bool, list[str]] = {True: [], False: []}
    for node_id, node in cluster.nodes.items():
        told[node_id == odd] += [line for line in node.journal_lines if "differs from the controller's" in line]
    return told


@pytest.mark.parametrize(
    ("name", "value"), [("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")]
)
def test_a_node_that_was_started_with_another_value_says_so(name: str, value: str) -> None:
    lines = journals({name: value})
    assert len(lines[True]) == 1
    assert name in lines[True][0]
    assert not lines[False]


def test_nodes_that_agree_say_nothing() -> None:
    assert not any(journals({"num.partitions": "3"}).values())
