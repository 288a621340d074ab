"""Each fault does to the world what its name says, and is over when its time is."""

from __future__ import annotations

from random import Random

import pytest

from millpond.sim.fault_injector import FaultInjector
from millpond.sim.history.records import Promise
from millpond.sim.records.plan import FaultPlan
from millpond.wire import messages as m


class FaultTarget:
    def __init__(self, one_node) -> None:
        self.sim, self.node, self.history = one_node.sim, one_node.node, one_node.history
        self.one_node = one_node
        self.injector = FaultInjector(one_node.sim, one_node.node, one_node.history, Random(1))
        self.injector.watch()

    def strike(self, kind: str, lasts_ms: int = 200, luck: float = 0.5) -> None:
        self.injector.schedule([FaultPlan(kind, 0, lasts_ms, luck)])
        self.sim.run_for(1)


@pytest.fixture
def target(one_node) -> FaultTarget:
    return FaultTarget(one_node)


@pytest.mark.parametrize("kind", ["power cut", "kill"])
def test_the_node_ends_and_is_started_again(target: FaultTarget, kind: str) -> None:
    target.strike(kind)
    assert not target.node.is_up
    assert (target.history.last_power_cut_ms >= 0) == (kind == "power cut")
    assert target.sim.run_until(lambda: target.node.is_up, within_ms=3_000)
    assert target.node.incarnation == 2


def test_a_power_cut_at_an_operation_waits_for_that_operation(target: FaultTarget) -> None:
    target.strike("power cut at operation", luck=0.1)
    target.sim.run_for(100)
    assert target.node.incarnation == 1
    producer = target.one_node.producer()
    for content in target.one_node.contents(20):
        producer.produce(target.one_node.partitions[0], [content], Promise.SURVIVES)
    assert target.sim.run_until(lambda: target.node.incarnation == 2)
    assert target.injector.counts == {"power cut at operation": 1}
    assert target.history.last_power_cut_ms >= 0


def test_a_stop_is_clean(target: FaultTarget) -> None:
    target.strike("stop")
    assert target.sim.run_until(lambda: target.node.incarnation == 2)
    assert target.history.last_power_cut_ms == -1


@pytest.mark.parametrize("kind", ["failing sync", "failing sync, then kill"])
def test_after_a_failed_sync_the_node_is_started_again(target: FaultTarget, kind: str) -> None:
    target.strike(kind, lasts_ms=50)
    assert target.node.disk.sync_faults
    target.sim.run_for(200)
    assert not target.node.disk.sync_faults
    assert (target.history.last_power_cut_ms >= 0) == (kind == "failing sync")
    assert target.sim.run_until(lambda: target.node.incarnation == 2, within_ms=3_000)


def test_a_full_disk_has_room_again(target: FaultTarget) -> None:
    target.strike("full disk", luck=0.0)
    assert target.node.disk.free_bytes("/") == 0
    target.sim.run_for(200)
    assert target.node.disk.free_bytes("/") > 1 << 30


def test_resets_break_connections(target: FaultTarget) -> None:
    clients = [target.one_node.client(f"client{number}") for number in range(9)]
    replies: list = []
    for client in clients:
        client.send(m.ApiVersionsRequest(client_software_name="s", client_software_version="1"), 3, replies.append)
    assert target.sim.run_until(lambda: len(replies) == 9)
    open_before = len(target.sim.network.links("node"))
    target.strike("resets")
    assert len(target.sim.network.links("node")) < open_before


def test_slowness_and_cold_end(target: FaultTarget) -> None:
    for kind in ("slow network", "slow disk", "stuck disk", "cold disk"):
        target.strike(kind)
    assert target.sim.network.latency_range_ms[1] > 3
    assert target.node.workers_delay_ms == 2_050
    assert target.node.workers.stuck_share > 0
    assert target.node.disk.cold_share == 0.5
    target.sim.run_for(300)
    assert target.sim.network.latency_range_ms == (0, 3)
    assert target.node.workers_delay_ms == 5
    assert target.node.workers.stuck_share == 0
    assert target.node.disk.cold_share == 0.0


@pytest.mark.parametrize(("luck", "leaps"), [(0.0, False), (0.99, True)])
def test_the_clock_jumps_back_or_forward(target: FaultTarget, luck: float, leaps: bool) -> None:
    before = target.sim.clock.wall_ms()
    target.strike("clock jump", luck=luck)
    assert (target.sim.clock.wall_ms() - before > 1_000) == leaps
    assert target.injector.clock_leapt == leaps


def test_lost_packets_arrive_late(target: FaultTarget) -> None:
    client, heard = target.one_node.client(), []
    request = m.ApiVersionsRequest(client_software_name="s", client_software_version="1")
    client.send(request, 3, heard.append)
    assert target.sim.run_until(lambda: bool(heard))
    target.strike("lost packets", lasts_ms=1_000)
    target.sim.network.partition("client", "node")
    client.send(request, 3, heard.append)
    target.sim.run_for(500)
    assert len(heard) == 1
    assert target.sim.run_until(lambda: len(heard) == 2, within_ms=1_000)
    assert heard[1] is not None


def test_the_end_heals_everything(target: FaultTarget) -> None:
    for kind in ("full disk", "slow network", "cold disk", "lost packets", "power cut at operation"):
        target.strike(kind, lasts_ms=1 << 30)
    target.injector.end()
    assert target.node.disk.free_bytes("/") > 1 << 30
    assert target.node.disk.cold_share == 0.0
    assert target.sim.network.latency_range_ms == (0, 3)
    producer = target.one_node.producer()
    batch = producer.produce(target.one_node.partitions[0], target.one_node.contents(2), Promise.SURVIVES)
    assert target.sim.run_until(producer.is_idle)
    assert batch.base_offset == 0


def test_a_power_cut_just_before_the_end_is_heard_of(target: FaultTarget) -> None:
    """Otherwise the checker would look for records that were never acknowledged."""
    target.strike("power cut at operation", luck=0.0)
    target.one_node.producer().produce(target.one_node.partitions[0], target.one_node.contents(1), Promise.SURVIVES)
    assert target.sim.run_until(lambda: not target.node.is_up, within_ms=100)
    assert target.history.last_power_cut_ms == -1, "no check has run yet"
    target.injector.end()
    assert target.history.last_power_cut_ms == target.sim.clock.now_ms
    assert target.injector.counts == {"power cut at operation": 1}


def test_a_node_boots_with_a_clock_behind_that_is_set_right(target: FaultTarget) -> None:
    oscillator = target.sim.hosts["node"].oscillator
    target.strike("clock behind", luck=0.9)
    assert oscillator.wall_offset_ms == -8 * 86_400_000
    assert target.sim.run_until(lambda: target.node.incarnation == 2, within_ms=2_000)
    assert oscillator.wall_offset_ms == 0
    assert target.sim.run_until(lambda: target.node.incarnation == 3, within_ms=4_000)
    target.strike("clock behind", lasts_ms=100_000)
    target.injector.end()
    assert oscillator.wall_offset_ms == 0


@pytest.mark.parametrize(("kind", "counted_ms"), [("suspension", 0), ("pause", 2_000)])
def test_a_node_that_stands_still_answers_later(target: FaultTarget, kind: str, counted_ms: int) -> None:
    clock = target.sim.hosts["node"].clock
    before = clock.monotonic_ms()
    target.strike(kind, lasts_ms=2_000)
    answers: list[object] = []
    target.one_node.client().send(m.ApiVersionsRequest(), 0, answers.append)
    target.sim.run_for(1_900)
    assert answers == []
    assert target.sim.run_until(lambda: bool(answers), within_ms=500)
    assert answers != [None]
    assert counted_ms <= clock.monotonic_ms() - before < counted_ms + 600
    assert target.node.incarnation == 1


def test_an_offline_partition_is_found_at_a_start_and_whole_at_the_next(target: FaultTarget) -> None:
    target.strike("offline partition", lasts_ms=2_000)
    assert target.sim.run_until(lambda: target.node.incarnation == 2 and target.node.is_up, within_ms=2_000)
    assert len(target.node.broker.store.failed) == 1
    assert target.sim.run_until(lambda: target.node.incarnation == 3 and target.node.is_up, within_ms=6_000)
    assert not target.node.broker.store.failed
