"""Leases of whole nodes: no other node leads before a lease has ended, whatever network and clocks do."""

from __future__ import annotations

import pytest
from tests.sim.cluster.node_cluster import NodeCluster, code_of, leader_told_by, produce

from millpond.base.errors import ErrorCode

KAFKA_TIMES = {"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "9000"}
"""Kafka's own defaults."""
OTHER_TIMES = {"broker.heartbeat.interval.ms": "600", "broker.session.timeout.ms": "3000"}


def reject(cluster: NodeCluster, victim: int) -> list[int]:
    """Cut a node off so that connections are refused, both ways; the others."""
    others = [node_id for node_id in cluster.nodes if node_id != victim]
    for node_id in others:
        cluster.sim.network.reject_between(f"node{victim}", f"node{node_id}")
        cluster.sim.network.reset_between(f"node{victim}", f"node{node_id}")
    return others


def overlap_ms(cluster: NodeCluster, victim: int, other: int, within_ms: int) -> int:
    """For how long the victim still holds its lease after another node leads its partition; -1 if none ever does."""
    held_ms, is_replaced = 0, False
    for _ in range(within_ms):
        cluster.sim.run_for(1)
        image = cluster.nodes[other].broker.image
        is_replaced = is_replaced or image.topics["pond"].partitions[0].leader not in (victim, -1)
        held_ms += is_replaced and cluster.nodes[victim].broker.lifecycle.has_lease()
    return held_ms if is_replaced else -1


@pytest.mark.parametrize("texts", [{}, KAFKA_TIMES], ids=["ours", "kafka"])
@pytest.mark.parametrize("seed", range(3))
def test_a_deposed_controller_has_no_lease_when_another_leads(seed: int, texts: dict[str, str]) -> None:
    cluster = NodeCluster(seed, texts=texts)
    victim = cluster.controller_id
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    cluster.sim.run_for(1000 + 37 * seed)
    others = reject(cluster, victim)
    assert overlap_ms(cluster, victim, others[0], within_ms=12_000) == 0


@pytest.mark.parametrize("texts", [{}, OTHER_TIMES, KAFKA_TIMES], ids=["ours", "other", "kafka"])
@pytest.mark.parametrize("seed", range(6))
def test_a_lease_from_a_deposed_controller_ends_before_another_leads(seed: int, texts: dict[str, str]) -> None:
    """A leader that still reaches the old controller and no other node."""
    cluster = NodeCluster(seed, count=5, texts=texts)
    deposed = cluster.controller_id
    victim = cluster.other(deposed)
    others = [node_id for node_id in cluster.nodes if node_id not in (deposed, victim)]
    cluster.create(victim, replicas=(victim, *others[:2]))
    cluster.sim.run_for(1000 + 137 * seed)
    for node_id in others:
        for cut_off in (victim, deposed):
            cluster.sim.network.reject_between(f"node{cut_off}", f"node{node_id}")
            cluster.sim.network.reset_between(f"node{cut_off}", f"node{node_id}")
    assert overlap_ms(cluster, victim, others[0], within_ms=6_000) == 0


@pytest.mark.parametrize("is_controller", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_wakes_up_has_no_lease(seed: int, is_controller: bool) -> None:
    cluster = NodeCluster(seed)
    victim = cluster.controller_id if is_controller else cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    cluster.sim.run_for(500 + 37 * seed)
    lifecycle = cluster.nodes[victim].broker.lifecycle
    cluster.wait(lifecycle.has_lease)
    cluster.sim.fall_asleep(f"node{victim}")
    cluster.sim.run_for(10_000)
    cluster.sim.resume(f"node{victim}")
    assert not lifecycle.has_lease(), "what waits in its sockets is answered now"
    cluster.wait(cluster.is_whole)
    cluster.wait(lifecycle.has_lease)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_lease_is_void_where_the_clocks_of_a_node_part(cluster: NodeCluster, is_controller: bool) -> None:
    """A virtual machine that was paused: only its wall clock is set right."""
    victim = cluster.controller_id if is_controller else cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.sim.run_for(1000)
    lifecycle = cluster.nodes[victim].broker.lifecycle
    cluster.wait(lifecycle.has_lease)
    cluster.sim.jump_wall(f"node{victim}", 5_000)
    assert not lifecycle.has_lease()
    assert lifecycle.sessions_missed == 0, "that refuses no request"
    cluster.wait(lifecycle.has_lease, within_ms=1_000)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_leader_whose_connections_are_refused_sends_its_writers_away(
    cluster: NodeCluster, is_controller: bool
) -> None:
    victim = cluster.controller_id if is_controller else cluster.other(cluster.controller_id)
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    cluster.sim.run_for(1000)
    others = reject(cluster, victim)
    waiting = produce(cluster, victim, -1)
    assert cluster.wait(lambda: bool(waiting)) < 2000
    assert code_of(waiting[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.wait(lambda: leader_told_by(cluster, victim) == others[0]) < 2000
    cluster.wait(lambda: leader_told_by(cluster, others[0]) == others[0])
    cluster.sim.network.heal()
    cluster.wait(cluster.is_whole)


def test_a_killed_controller_is_replaced_when_its_lease_is_over(cluster: NodeCluster) -> None:
    victim = cluster.controller_id
    cluster.create(victim)
    cluster.wait(cluster.is_whole)
    cluster.sim.run_for(1000)
    cluster.nodes[victim].kill()
    assert cluster.wait(lambda: cluster.controller_id != 0 and cluster.partition().leader not in (victim, -1)) < 1000
