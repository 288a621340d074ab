"""Jobs take virtual time; exactly one answer comes back."""

from __future__ import annotations

import pytest

from millpond.sim.world.clock import VirtualClock
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.sim.world.workers import SimWorkers


def run_jobs(seed: int) -> list[object]:
    clock = VirtualClock(seed)
    workers = SimWorkers(clock, seed)
    heard: list[object] = []
    for number in range(20):
        later = workers.run(lambda number=number: 100 // (number - 7))
        later.then(heard.append, lambda error: heard.append(type(error)))
    assert heard == [], "never inside the call"
    clock.run_for(100)
    return heard


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
    heard: list[object] = []
    SimWorkers(clock).run(lambda: disk.make_folder("/a")).then(heard.append, heard.append)
    with pytest.raises(PowerCut):
        clock.run_for(100)
    assert heard == []


def test_some_jobs_are_stuck_while_others_are_quick() -> None:
    clock = VirtualClock()
    workers = SimWorkers(clock)
    workers.stuck_share, workers.stuck_ms = 0.5, 10_000
    heard: list[object] = []
    for number in range(20):
        workers.run(lambda number=number: number).then(heard.append)
    clock.run_for(100)
    assert 0 < len(heard) < 20
    clock.run_for(20_000)
    assert sorted(heard) == list(range(20))  # type: ignore[type-var]
