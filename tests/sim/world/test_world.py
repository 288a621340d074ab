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
    replies: list[str] = []
    world.clock.call_later(100, lambda: replies.append("timer"))
    world.workers.run(lambda: replies.append("job"))
    world.clock.call_soon(lambda: replies.append("soon"))
    sim.crash("a")
    sim.run_for(1000)
    assert replies == []


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
    assert made[0].closed_count == 0, "no link is notified"
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
    sim.jump_wall("one", 5_000)
    assert one.clock.wall_ms() - two.clock.wall_ms() == 5_000
    assert one.clock.monotonic_ms() == two.clock.monotonic_ms()
    one = sim.restart("one")
    assert one.clock.wall_ms() - two.clock.wall_ms() == 5_000, "it is the machine's, not the process's"


def test_a_host_can_boot_behind_its_time() -> None:
    sim = SimWorld(1)
    sim.jump_wall("one", -8 * 86_400_000)
    assert sim.start("one").clock.wall_ms() == sim.clock.wall_ms() - 8 * 86_400_000


def test_durations_pass_faster_on_one_host() -> None:
    sim = SimWorld(1)
    sim.set_rate("fast", 2.0)
    fast, plain = sim.start("fast"), sim.start("plain")
    fired: list[tuple[str, int]] = []
    fast.clock.call_later(1_000, lambda: fired.append(("fast", sim.clock.now_ms)))
    plain.clock.call_later(1_000, lambda: fired.append(("plain", sim.clock.now_ms)))
    sim.run_for(3_000)
    assert fired == [("fast", 500), ("plain", 1_000)]
    assert (fast.clock.monotonic_ms(), plain.clock.monotonic_ms()) == (6_000, 3_000)


def test_a_paused_host_does_nothing_and_hears_everything_later(make_peer) -> None:
    sim = SimWorld(1)
    world = sim.start("a")
    served = serve(world, make_peer)
    made = []
    sim.network.connect("a", 9092, lambda link: made.append(make_peer(link)) or made[0])
    assert sim.run_until(lambda: bool(served))
    fired: list[str] = []
    timer = world.clock.call_later(100, lambda: fired.append("cancelled"))
    world.clock.call_later(200, lambda: fired.append("timer"))
    world.workers.run(lambda: fired.append("job")).then(lambda _: fired.append("done"))
    sim.pause("a")
    made[0].link.send([b"anyone?"])
    late = []
    sim.network.connect("a", 9092, lambda link: late.append(make_peer(link)) or late[0])
    sim.run_for(10_000)
    assert (fired, served[0].data, len(served)) == ([], b"", 1)
    assert (made[0].closed_count, late[0].closed_count) == (0, 0), "no link is notified"
    timer.cancel()
    sim.resume("a")
    sim.run_for(100)
    assert sorted(fired) == ["done", "job", "timer"]
    assert made[0].data == b"anyone?"
    assert len(served) == 2
    assert world.clock.monotonic_ms() == sim.clock.now_ms, "time has passed all the same"


def test_a_peer_that_goes_while_a_host_is_paused_is_noticed_when_it_goes_on(make_peer) -> None:
    sim = SimWorld(1)
    served = serve(sim.start("a"), make_peer)
    made = []
    sim.network.connect("a", 9092, lambda link: made.append(make_peer(link)) or made[0])
    assert sim.run_until(lambda: bool(served))
    sim.pause("a")
    sim.network.reset(made[0].link)
    sim.run_for(1_000)
    assert (made[0].closed_count, served[0].closed_count) == (1, 0)
    sim.resume("a")
    sim.run_for(10)
    assert served[0].closed_count == 1


def test_a_paused_host_that_is_killed_does_not_go_on() -> None:
    sim = SimWorld(1)
    replies: list[str] = []
    sim.start("a").clock.call_later(10, lambda: replies.append("timer"))
    sim.pause("a")
    sim.run_for(100)
    sim.kill("a")
    sim.resume("a")
    sim.start("a")
    sim.run_for(100)
    assert replies == []


def test_a_suspended_host_does_not_count_the_time(make_peer) -> None:
    sim = SimWorld(1)
    clock = sim.start("laptop").clock
    fired: list[int] = []
    clock.call_later(1_000, lambda: fired.append(sim.clock.now_ms))
    clock.call_later(20_000, lambda: fired.append(sim.clock.now_ms))
    gone = clock.call_later(1_500, lambda: fired.append(-1))
    sim.run_for(400)
    before = clock.wall_ms()
    sim.suspend("laptop", 10_000)
    sim.run_for(11_000)
    assert clock.wall_ms() - before == 11_000
    assert clock.monotonic_ms() == 1_400
    assert clock.boottime_ms() == 11_400
    gone.cancel()
    sim.run_for(30_000)
    assert fired == [11_000, 30_000]


def test_a_wiped_disk_is_empty() -> None:
    sim = SimWorld(1)
    sim.start("a").disk.replace("/a", b"gone")
    sim.crash("a")
    sim.wipe("a")
    world = sim.start("a")
    assert not world.disk.exists("/a")
    world.disk.replace("/a", b"new")
    assert sim.restart("a").disk.read("/a") == b"new"
