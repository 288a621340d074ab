"""Virtual time passes in order, and only when told to."""

from __future__ import annotations

from millpond.sim.world.clock import VirtualClock


def test_events_run_in_the_order_of_their_moments() -> None:
    clock = VirtualClock()
    replies = []
    for delay in (30, 10, 20):
        clock.call_later(delay, lambda delay=delay: replies.append((delay, clock.monotonic_ms())))
    clock.run_for(15)
    assert (replies, clock.monotonic_ms()) == ([(10, 10)], 15)
    clock.run_for(100)
    assert replies == [(10, 10), (20, 20), (30, 30)]
    assert clock.monotonic_ms() == 115


def test_ties_keep_the_order_of_asking() -> None:
    clock = VirtualClock()
    replies = []
    clock.call_later(0, lambda: replies.append(0))
    for number in range(1, 50):
        clock.call_soon(lambda number=number: replies.append(number))
    clock.run_for(0)
    assert replies == list(range(50))


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
    replies = []
    timer = clock.call_later(10, lambda: replies.append("cancelled"))
    clock.call_later(10, lambda: replies.append("kept"))
    timer.cancel()
    timer.cancel()
    assert clock.pending() == 1
    clock.run_for(20)
    assert replies == ["kept"]
    assert not clock.step()


def test_run_until_stops_as_soon_as_the_condition_holds() -> None:
    clock = VirtualClock()
    replies = []
    for delay in (10, 20, 30):
        clock.call_later(delay, lambda delay=delay: replies.append(delay))
    assert clock.run_until(lambda: len(replies) == 2)
    assert clock.monotonic_ms() == 20
    assert not clock.run_until(lambda: len(replies) == 9, within_ms=500)
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
    replies = []
    clock.call_later(1000, lambda: replies.append(clock.wall_ms()))
    clock.jump_wall(-3_600_000)
    assert clock.wall_ms() == wall - 3_600_000
    clock.run_for(999)
    assert replies == []
    clock.run_for(1)
    assert replies == [wall - 3_600_000 + 1000]
