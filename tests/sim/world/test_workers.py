"""Jobs take virtual time; exactly one answer comes back."""

from __future__ import annotations

import pytest

from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.sim.world.workers import SimWorkers


def run_jobs(seed: int) -> list[object]:
    clock = VirtualClock(seed)
    workers = SimWorkers(clock, seed)
    replies: list[object] = []
    for number in range(20):
        later = workers.run(lambda number=number: 100 // (number - 7))
        later.then(replies.append, lambda error: replies.append(type(error)))
    assert replies == [], "never inside the call"
    clock.run_for(100)
    return replies


def test_every_job_answers_once() -> None:
    heard = run_jobs(1)
    assert len(heard) == 20
    assert heard.count(ZeroDivisionError) == 1


def test_the_seed_decides_who_overtakes_whom() -> None:
    assert run_jobs(1) == run_jobs(1)
    assert run_jobs(1) != run_jobs(2)


def test_a_power_cut_goes_through() -> None:
    clock = VirtualClock()
    disk = SimDisk()
    disk.crash_at_operation(1)
    replies: list[object] = []
    SimWorkers(clock).run(lambda: disk.make_folder("/a")).then(replies.append, replies.append)
    with pytest.raises(PowerCut):
        clock.run_for(100)
    assert replies == []


def test_some_jobs_are_stuck_while_others_are_quick() -> None:
    clock = VirtualClock()
    workers = SimWorkers(clock)
    workers.stuck_share, workers.stuck_ms = 0.5, 10_000
    replies: list[object] = []
    for number in range(20):
        workers.run(lambda number=number: number).then(replies.append)
    clock.run_for(100)
    assert 0 < len(replies) < 20
    clock.run_for(20_000)
    assert sorted(replies) == list(range(20))  # type: ignore[type-var]
