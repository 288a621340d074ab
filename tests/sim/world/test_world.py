"""Hosts that start, lose power and start again over one clock and network."""

from __future__ import annotations

import pytest

from millpond.base.ports import World
from millpond.sim.world.disk import PowerCut
from millpond.sim.world.world import SimWorld


def serve(world: World, make_peer) -> list:
    served: list = []

    def accept(link):
        served.append(make_peer(link, echo=True))
        return served[-1]

    world.network.listen("0.0.0.0", 9092, accept)
    return served


def test_hosts_talk(make_peer) -> None:
    sim = SimWorld(1)
    serve(sim.start("a"), make_peer)
    made = []
    sim.network.connect("a", 9092, lambda link: made.append(make_peer(link)) or made[0])
    made[0].link.send([b"hello"])
    assert sim.run_until(lambda: made[0].data == b"hello")


def test_what_a_crashed_host_had_planned_never_happens() -> None:
    sim = SimWorld(1)
    world = sim.start("a")
    heard: list[str] = []
    world.clock.call_later(100, lambda: heard.append("timer"))
    world.workers.run(lambda: heard.append("job"), lambda _: None, lambda _: None)
    world.clock.call_soon(lambda: heard.append("soon"))
    sim.crash("a")
    sim.run_for(1000)
    assert heard == []


def test_a_restart_finds_the_disk_and_fresh_luck() -> None:
    sim = SimWorld(1)
    world = sim.start("a")
    world.disk.replace("/a", b"kept")
    first = world.entropy.uuid()
    world = sim.restart("a")
    assert world.disk.read("/a") == b"kept"
    assert world.entropy.uuid() != first


def test_a_kill_keeps_unsynced_bytes_and_a_crash_may_not() -> None:
    outcomes = set()
    for seed in range(30):
        sim = SimWorld(seed)
        file = sim.start("a").disk.open("/a", create=True)
        file.append([b"unsynced"])
        sim.kill("a")
        assert sim.start("a").disk.read("/a") == b"unsynced"
        sim.crash("a")
        outcomes.add(sim.start("a").disk.exists("/a"))
    assert outcomes == {True, False}


def test_a_power_cut_stops_its_host_and_the_others_go_on(make_peer) -> None:
    sim = SimWorld(1)
    one, two = sim.start("one"), sim.start("two")
    served = serve(one, make_peer)
    made = []
    sim.network.connect("one", 9092, lambda link: made.append(make_peer(link)) or made[0])
    assert sim.run_until(lambda: bool(served))
    ticks: list[str] = []

    def tick(name: str, world: World) -> None:
        ticks.append(name)
        world.disk.make_folder(f"/{len(ticks)}")
        world.clock.call_later(100, lambda: tick(name, world))

    tick("one", one)
    tick("two", two)
    sim.hosts["one"].disk.crash_at_operation(4)
    sim.run_for(1000)
    assert sim.power_cuts == ["one"]
    assert ticks.count("one") == 4
    assert ticks.count("two") == 11
    assert made[0].closed_count == 0, "nobody is told"
    assert sim.clock.now_ms >= 1000


def test_a_power_cut_outside_the_loop_is_the_callers() -> None:
    sim = SimWorld(1)
    world = sim.start("a")
    sim.hosts["a"].disk.crash_at_operation(1)
    with pytest.raises(PowerCut) as raised:
        world.disk.make_folder("/a")
    assert raised.value.disk is sim.hosts["a"].disk


def test_wall_clocks_drift_apart() -> None:
    sim = SimWorld(1)
    one, two = sim.start("one"), sim.start("two")
    sim.hosts["one"].clock.wall_offset_ms = 5_000
    assert one.clock.wall_ms() - two.clock.wall_ms() == 5_000
    assert one.clock.monotonic_ms() == two.clock.monotonic_ms()
