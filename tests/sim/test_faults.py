"""Each fault does to the world what its name says, and is over when its time is."""

from __future__ import annotations

from random import Random

import pytest

from millpond.sim.faults import Trouble
from millpond.sim.history.records import Promise
from millpond.sim.records.plan import FaultPlan
from millpond.wire import messages as m


class Play:
    def __init__(self, pond) -> None:
        self.sim, self.node, self.history = pond.sim, pond.node, pond.history
        self.pond = pond
        self.trouble = Trouble(pond.sim, pond.node, pond.history, Random(1))
        self.trouble.watch()

    def strike(self, kind: str, lasts_ms: int = 200, luck: float = 0.5) -> None:
        self.trouble.schedule([FaultPlan(kind, 0, lasts_ms, luck)])
        self.sim.run_for(1)


@pytest.fixture
def play(pond) -> Play:
    return Play(pond)


@pytest.mark.parametrize("kind", ["power cut", "kill"])
def test_the_node_ends_and_is_started_again(play: Play, kind: str) -> None:
    play.strike(kind)
    assert not play.node.is_up
    assert (play.history.last_power_cut_ms >= 0) == (kind == "power cut")
    assert play.sim.run_until(lambda: play.node.is_up, within_ms=3_000)
    assert play.node.lives == 2


def test_a_power_cut_at_an_operation_waits_for_that_operation(play: Play) -> None:
    play.strike("power cut at operation", luck=0.1)
    play.sim.run_for(100)
    assert play.node.lives == 1
    producer = play.pond.producer()
    for content in play.pond.contents(20):
        producer.produce(play.pond.partitions[0], [content], Promise.SURVIVES)
    assert play.sim.run_until(lambda: play.node.lives == 2)
    assert play.trouble.counts == {"power cut at operation": 1}
    assert play.history.last_power_cut_ms >= 0


def test_a_stop_is_clean(play: Play) -> None:
    play.strike("stop")
    assert play.sim.run_until(lambda: play.node.lives == 2)
    assert play.history.last_power_cut_ms == -1


@pytest.mark.parametrize("kind", ["failing sync", "failing sync, then kill"])
def test_after_a_failed_sync_the_node_is_started_again(play: Play, kind: str) -> None:
    play.strike(kind, lasts_ms=50)
    assert play.node.disk.sync_faults
    play.sim.run_for(200)
    assert not play.node.disk.sync_faults
    assert (play.history.last_power_cut_ms >= 0) == (kind == "failing sync")
    assert play.sim.run_until(lambda: play.node.lives == 2, within_ms=3_000)


def test_a_full_disk_has_room_again(play: Play) -> None:
    play.strike("full disk", luck=0.0)
    assert play.node.disk.free_bytes("/") == 0
    play.sim.run_for(200)
    assert play.node.disk.free_bytes("/") > 1 << 30


def test_resets_break_connections(play: Play) -> None:
    clients = [play.pond.client(f"client{number}") for number in range(9)]
    heard: list = []
    for client in clients:
        client.send(m.ApiVersionsRequest(client_software_name="s", client_software_version="1"), 3, heard.append)
    assert play.sim.run_until(lambda: len(heard) == 9)
    open_before = len(play.sim.network.links("node"))
    play.strike("resets")
    assert len(play.sim.network.links("node")) < open_before


def test_slowness_and_cold_end(play: Play) -> None:
    for kind in ("slow network", "slow disk", "stuck disk", "cold disk"):
        play.strike(kind)
    assert play.sim.network.latency_range_ms[1] > 3
    assert play.node.workers_delay_ms == 2_050
    assert play.node.workers.stuck_share > 0
    assert play.node.disk.cold_share == 0.5
    play.sim.run_for(300)
    assert play.sim.network.latency_range_ms == (0, 3)
    assert play.node.workers_delay_ms == 5
    assert play.node.workers.stuck_share == 0
    assert play.node.disk.cold_share == 0.0


@pytest.mark.parametrize(("luck", "leaps"), [(0.0, False), (0.99, True)])
def test_the_clock_jumps_back_or_forward(play: Play, luck: float, leaps: bool) -> None:
    before = play.sim.clock.wall_ms()
    play.strike("clock jump", luck=luck)
    assert (play.sim.clock.wall_ms() - before > 1_000) == leaps
    assert play.trouble.clock_leapt == leaps


def test_lost_packets_arrive_late(play: Play) -> None:
    client, heard = play.pond.client(), []
    request = m.ApiVersionsRequest(client_software_name="s", client_software_version="1")
    client.send(request, 3, heard.append)
    assert play.sim.run_until(lambda: bool(heard))
    play.strike("lost packets", lasts_ms=1_000)
    play.sim.network.partition("client", "node")
    client.send(request, 3, heard.append)
    play.sim.run_for(500)
    assert len(heard) == 1
    assert play.sim.run_until(lambda: len(heard) == 2, within_ms=1_000)
    assert heard[1] is not None


def test_the_end_heals_everything(play: Play) -> None:
    for kind in ("full disk", "slow network", "cold disk", "lost packets", "power cut at operation"):
        play.strike(kind, lasts_ms=1 << 30)
    play.trouble.end()
    assert play.node.disk.free_bytes("/") > 1 << 30
    assert play.node.disk.cold_share == 0.0
    assert play.sim.network.latency_range_ms == (0, 3)
    producer = play.pond.producer()
    batch = producer.produce(play.pond.partitions[0], play.pond.contents(2), Promise.SURVIVES)
    assert play.sim.run_until(producer.is_idle)
    assert batch.base_offset == 0


def test_a_power_cut_just_before_the_end_is_heard_of(play: Play) -> None:
    """Or who judges would look for records that nobody has promised."""
    play.strike("power cut at operation", luck=0.0)
    play.pond.producer().produce(play.pond.partitions[0], play.pond.contents(1), Promise.SURVIVES)
    assert play.sim.run_until(lambda: not play.node.is_up, within_ms=100)
    assert play.history.last_power_cut_ms == -1, "nobody has looked yet"
    play.trouble.end()
    assert play.history.last_power_cut_ms == play.sim.clock.now_ms
    assert play.trouble.counts == {"power cut at operation": 1}


def test_a_node_boots_with_a_clock_behind_that_is_set_right(play: Play) -> None:
    oscillator = play.sim.hosts["node"].oscillator
    play.strike("clock behind", luck=0.9)
    assert oscillator.wall_offset_ms == -8 * 86_400_000
    assert play.sim.run_until(lambda: play.node.lives == 2, within_ms=2_000)
    assert oscillator.wall_offset_ms == 0
    assert play.sim.run_until(lambda: play.node.lives == 3, within_ms=4_000)
    play.strike("clock behind", lasts_ms=100_000)
    play.trouble.end()
    assert oscillator.wall_offset_ms == 0


@pytest.mark.parametrize(("kind", "counted_ms"), [("suspension", 0), ("pause", 2_000)])
def test_a_node_that_stands_still_answers_later(play: Play, kind: str, counted_ms: int) -> None:
    clock = play.sim.hosts["node"].clock
    before = clock.monotonic_ms()
    play.strike(kind, lasts_ms=2_000)
    answers: list[object] = []
    play.pond.client().send(m.ApiVersionsRequest(), 0, answers.append)
    play.sim.run_for(1_900)
    assert answers == []
    assert play.sim.run_until(lambda: bool(answers), within_ms=500)
    assert answers != [None]
    assert counted_ms <= clock.monotonic_ms() - before < counted_ms + 600
    assert play.node.lives == 1


def test_an_offline_partition_is_found_at_a_start_and_whole_at_the_next(play: Play) -> None:
    play.strike("offline partition", lasts_ms=2_000)
    assert play.sim.run_until(lambda: play.node.lives == 2 and play.node.is_up, within_ms=2_000)
    assert len(play.node.broker.store.failed) == 1
    assert play.sim.run_until(lambda: play.node.lives == 3 and play.node.is_up, within_ms=6_000)
    assert not play.node.broker.store.failed
