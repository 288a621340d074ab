"""Leases of whole nodes: nobody leads in a node's place before its lease is over, whatever network and clocks do."""

from __future__ import annotations

import pytest
from tests.sim.cluster.test_lives import Lives, code_of, leader_told_by, produce

from millpond.base.errors import ErrorCode

KAFKA_TIMES = {"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "9000"}
"""Kafka's own defaults."""
OTHER_TIMES = {"broker.heartbeat.interval.ms": "600", "broker.session.timeout.ms": "3000"}


def reject(lives: Lives, victim: int) -> list[int]:
    """Cut a node off so that connections are refused, both ways; the others."""
    others = [node_id for node_id in lives.nodes if node_id != victim]
    for node_id in others:
        lives.sim.network.reject_between(f"node{victim}", f"node{node_id}")
        lives.sim.network.reset_between(f"node{victim}", f"node{node_id}")
    return others


def overlap_ms(lives: Lives, victim: int, other: int, within_ms: int) -> int:
    """For how long the victim still holds its lease after another leads its partition; -1 if nobody ever does."""
    held_ms, is_replaced = 0, False
    for _ in range(within_ms):
        lives.sim.run_for(1)
        image = lives.nodes[other].broker.image
        is_replaced = is_replaced or image.topics["pond"].partitions[0].leader not in (victim, -1)
        held_ms += is_replaced and lives.nodes[victim].broker.lifecycle.has_lease()
    return held_ms if is_replaced else -1


@pytest.mark.parametrize("texts", [{}, KAFKA_TIMES], ids=["ours", "kafka"])
@pytest.mark.parametrize("seed", range(3))
def test_a_deposed_controller_has_no_lease_when_another_leads(seed: int, texts: dict[str, str]) -> None:
    lives = Lives(seed, texts=texts)
    victim = lives.controller_id
    lives.create(victim)
    lives.wait(lives.is_whole)
    lives.sim.run_for(1000 + 37 * seed)
    others = reject(lives, victim)
    assert overlap_ms(lives, victim, others[0], within_ms=12_000) == 0


@pytest.mark.parametrize("texts", [{}, OTHER_TIMES, KAFKA_TIMES], ids=["ours", "other", "kafka"])
@pytest.mark.parametrize("seed", range(6))
def test_a_lease_from_a_deposed_controller_ends_before_another_leads(seed: int, texts: dict[str, str]) -> None:
    """A leader that still reaches the old controller and nobody else."""
    lives = Lives(seed, count=5, texts=texts)
    deposed = lives.controller_id
    victim = lives.other(deposed)
    others = [node_id for node_id in lives.nodes if node_id not in (deposed, victim)]
    lives.create(victim, replicas=(victim, *others[:2]))
    lives.sim.run_for(1000 + 137 * seed)
    for node_id in others:
        for cut_off in (victim, deposed):
            lives.sim.network.reject_between(f"node{cut_off}", f"node{node_id}")
            lives.sim.network.reset_between(f"node{cut_off}", f"node{node_id}")
    assert overlap_ms(lives, victim, others[0], within_ms=6_000) == 0


@pytest.mark.parametrize("is_controller", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_wakes_up_has_no_lease(seed: int, is_controller: bool) -> None:
    lives = Lives(seed)
    victim = lives.controller_id if is_controller else lives.other(lives.controller_id)
    lives.create(victim)
    lives.wait(lives.is_whole)
    lives.sim.run_for(500 + 37 * seed)
    lifecycle = lives.nodes[victim].broker.lifecycle
    lives.wait(lifecycle.has_lease)
    lives.sim.fall_asleep(f"node{victim}")
    lives.sim.run_for(10_000)
    lives.sim.resume(f"node{victim}")
    assert not lifecycle.has_lease(), "what waits in its sockets is answered now"
    lives.wait(lives.is_whole)
    lives.wait(lifecycle.has_lease)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_lease_is_void_where_the_clocks_of_a_node_part(lives: Lives, is_controller: bool) -> None:
    """A virtual machine that was paused: only its wall clock is set right."""
    victim = lives.controller_id if is_controller else lives.other(lives.controller_id)
    lives.create(victim)
    lives.sim.run_for(1000)
    lifecycle = lives.nodes[victim].broker.lifecycle
    lives.wait(lifecycle.has_lease)
    lives.sim.jump_wall(f"node{victim}", 5_000)
    assert not lifecycle.has_lease()
    assert lifecycle.sessions_missed == 0, "nobody is sent away for that"
    lives.wait(lifecycle.has_lease, within_ms=1_000)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_leader_whose_connections_are_refused_sends_its_writers_away(lives: Lives, is_controller: bool) -> None:
    victim = lives.controller_id if is_controller else lives.other(lives.controller_id)
    lives.create(victim)
    lives.wait(lives.is_whole)
    lives.sim.run_for(1000)
    others = reject(lives, victim)
    waiting = produce(lives, victim, -1)
    assert lives.wait(lambda: bool(waiting)) < 2000
    assert code_of(waiting[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert lives.wait(lambda: leader_told_by(lives, victim) == others[0]) < 2000
    lives.wait(lambda: leader_told_by(lives, others[0]) == others[0])
    lives.sim.network.heal()
    lives.wait(lives.is_whole)


def test_a_killed_controller_is_replaced_when_its_lease_is_over(lives: Lives) -> None:
    victim = lives.controller_id
    lives.create(victim)
    lives.wait(lives.is_whole)
    lives.sim.run_for(1000)
    lives.nodes[victim].kill()
    assert lives.wait(lambda: lives.controller_id != 0 and lives.partition().leader not in (victim, -1)) < 1000


@pytest.fixture
def lives() -> Lives:
    return Lives()
