"""Virtual time passes in order, and only when told to."""

from __future__ import annotations

from millpond.sim.world.clock import VirtualClock


def test_events_run_in_the_order_of_their_moments() -> None:
    clock = VirtualClock()
    heard = []
    for delay in (30, 10, 20):
        clock.call_later(delay, lambda delay=delay: heard.append((delay, clock.monotonic_ms())))
    clock.run_for(15)
    assert (heard, clock.monotonic_ms()) == ([(10, 10)], 15)
    clock.run_for(100)
    assert heard == [(10, 10), (20, 20), (30, 30)]
    assert clock.monotonic_ms() == 115


def test_ties_keep_the_order_of_asking() -> None:
    clock = VirtualClock()
    heard = []
    clock.call_later(0, lambda: heard.append(0))
    for number in range(1, 50):
        clock.call_soon(lambda number=number: heard.append(number))
    clock.run_for(0)
    assert heard == list(range(50))


def shuffled(seed: int) -> tuple[list[int], list[int]]:
    clock = VirtualClock(seed, shuffle=True)
    timers: list[int] = []
    soon: list[int] = []
    for number in range(20):
        clock.call_later(5, lambda number=number: timers.append(number))
        clock.call_soon(lambda number=number: soon.append(number))
    clock.run_for(5)
    return timers, soon


def test_shuffled_ties_follow_the_seed_and_call_soon_stays_in_order() -> None:
    assert shuffled(1) == shuffled(1)
    assert shuffled(1)[0] != shuffled(2)[0]
    assert sorted(shuffled(1)[0]) == shuffled(1)[1] == list(range(20))


def test_cancelled_timers_do_not_run() -> None:
    clock = VirtualClock()
    heard = []
    timer = clock.call_later(10, lambda: heard.append("cancelled"))
    clock.call_later(10, lambda: heard.append("kept"))
    timer.cancel()
    timer.cancel()
    assert clock.pending() == 1
    clock.run_for(20)
    assert heard == ["kept"]
    assert not clock.step()


def test_run_until_stops_as_soon_as_the_condition_holds() -> None:
    clock = VirtualClock()
    heard = []
    for delay in (10, 20, 30):
        clock.call_later(delay, lambda delay=delay: heard.append(delay))
    assert clock.run_until(lambda: len(heard) == 2)
    assert clock.monotonic_ms() == 20
    assert not clock.run_until(lambda: len(heard) == 9, within_ms=500)
    assert clock.monotonic_ms() == 520


def test_events_may_ask_for_more_events() -> None:
    clock = VirtualClock()
    ticks = []

    def tick() -> None:
        ticks.append(clock.monotonic_ms())
        clock.call_later(100, tick)

    clock.call_soon(tick)
    clock.run_for(350)
    assert ticks == [0, 100, 200, 300]


def test_the_wall_clock_jumps_and_durations_do_not_notice() -> None:
    clock = VirtualClock()
    wall = clock.wall_ms()
    heard = []
    clock.call_later(1000, lambda: heard.append(clock.wall_ms()))
    clock.jump_wall(-3_600_000)
    assert clock.wall_ms() == wall - 3_600_000
    clock.run_for(999)
    assert heard == []
    clock.run_for(1)
    assert heard == [wall - 3_600_000 + 1000]
