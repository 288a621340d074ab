"""Workers of a share group in the simulator: they follow leaders, return what they hold, and respect limits."""

from __future__ import annotations

import pytest

from millpond.sim.simulator.actions import (
    Action,
    AddConsumer,
    AddShareConsumer,
    CrashConsumer,
    CreateTopic,
    Cut,
    Heal,
    Produce,
    SetGroupConfig,
    StartNode,
    StopConsumer,
    StopNode,
)
from millpond.sim.simulator.recording import recording_of
from millpond.sim.simulator.simulation import CLIENTS_MAX, Simulation
from millpond.sim.simulator.snapshot import Observer

EARLIEST = SetGroupConfig("jobs", "share.auto.offset.reset", "earliest")


def play(*steps: Action | int, nodes: int = 3, seed: int = 1) -> Simulation:
    tape = recording_of(steps, seed=seed, nodes=nodes)
    simulation = Simulation(tape)
    simulation.run_to(tape.end_ms)
    return simulation


def told(simulation: Simulation, who: str) -> list[str]:
    return [line.text for line in simulation.story.lines if line.who == who]


def effects(simulation: Simulation, group: str = "jobs") -> list[int]:
    """How often each record was processed."""
    return [simulation.ledger.effects[group][each] for each in simulation.ledger.records]


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_follow_the_leader(seed: int) -> None:
    simulation = play(
        CreateTopic(partitions=2),
        EARLIEST,
        300,
        AddShareConsumer("worker", 3, work_ms=20),
        1000,
        Produce(count=60, every_ms=20),
        300,
        StopNode("leader"),
        4000,
        StartNode(),
        5000,
        seed=seed,
    )
    assert all(effects(simulation)), "every record was processed"
    verdict = Observer(simulation).look()["verdict"]["groups"]["jobs"]
    assert verdict["records"] == 60
    assert verdict["given_up"]["count"] == verdict["failing"]["count"] == 0


def test_one_worker_reads_from_every_leader_in_turn() -> None:
    simulation = play(CreateTopic(partitions=3), EARLIEST, 300, AddShareConsumer(), 1000, Produce(count=30), 3000)
    assert effects(simulation) == [1] * 30
    led_by = {simulation.cluster.image.topics["orders"].partitions[each].leader for each in range(3)}  # type: ignore[union-attr]
    assert len(led_by) > 1
    handled = [each.partition for each in simulation.ledger.handled]
    assert set(handled[:9]) == {0, 1, 2}, "no partition waits until another one is empty"


def test_a_worker_that_leaves_returns_what_it_did_not_work_on() -> None:
    simulation = play(
        CreateTopic(partitions=1),
        EARLIEST,
        300,
        AddShareConsumer("first", work_ms=400, poll_max=10),
        1000,
        Produce(count=10),
        600,
        StopConsumer("first"),
        AddShareConsumer("second"),
        3000,
    )
    assert effects(simulation) == [1] * 10
    assert simulation.share_consumers["first"].state == "stopped"
    by_first = [each for each in simulation.ledger.handled if each.consumer == "first"]
    assert 0 < len(by_first) < 10
    # They do not count as delivered.
    assert not any("delivery 2" in text for text in told(simulation, "second"))


def test_a_worker_that_is_cut_off_is_replaced_once_its_locks_expire() -> None:
    simulation = play(
        CreateTopic(partitions=1),
        EARLIEST,
        300,
        AddShareConsumer("worker", 2, work_ms=100),
        1000,
        Produce(count=2),
        60,
        Cut("worker-1", "others"),
        6000,
        Heal(),
        Produce(count=4),
        4000,
    )
    assert all(effects(simulation))
    assert any("delivery 2" in text for text in told(simulation, "worker-2"))
    worker = simulation.share_consumers["worker-1"]
    assert worker.state == "running"
    assert worker.owned == {0}, "it has joined again"


def test_what_cannot_be_is_told_and_changes_nothing() -> None:
    impossible: tuple[Action, ...] = (
        AddShareConsumer(topic="nowhere"),
        AddShareConsumer("reader"),
        AddConsumer("worker"),
        AddShareConsumer(),
        StopConsumer("nobody"),
        CrashConsumer("worker-1"),
    )
    simulation = play(
        CreateTopic(),
        300,
        AddConsumer("reader"),
        AddShareConsumer(),
        300,
        *impossible,
        SetGroupConfig(value="soon"),
        SetGroupConfig(setting="share.delivery.count.limit", value="100"),
        300,
        nodes=1,
    )
    assert len(told(simulation, "simulator")) == len(impossible)
    unchanged = [text for text in told(simulation, "controller") if "is unchanged" in text]
    assert len(unchanged) == 2
    assert (len(simulation.consumers), len(simulation.share_consumers)) == (1, 1)


def test_looking_at_share_windows_changes_nothing() -> None:
    steps = (
        CreateTopic(partitions=2),
        EARLIEST,
        300,
        AddShareConsumer("worker", 3, work_ms=50),
        700,
        Produce(count=20),
    )
    tape = recording_of((*steps, 900))
    observed = Simulation(tape)
    observer = Observer(observed)
    for moment in range(0, tape.end_ms, 41):
        observed.run_to(moment)
        observer.look()
    observed.run_to(tape.end_ms)
    assert observed.digest() == play(*steps, 900).digest()


def test_workers_are_limited() -> None:
    crew = AddShareConsumer("worker", 40)
    simulation = play(CreateTopic(), 300, crew, AddShareConsumer("more", 40), 1, nodes=1)
    assert len(simulation.share_consumers) == CLIENTS_MAX
    assert told(simulation, "simulator") == [f"not possible: a simulation may have {CLIENTS_MAX} clients"]


def test_acquired_records_are_read_from_the_wire() -> None:
    simulation = play(CreateTopic(partitions=1), EARLIEST, 300, AddShareConsumer(), 1000, Produce(value="tea"), 200)
    flights = simulation.flights.since(simulation.story.origin_ms + 1300)
    (acquired,) = [each for each in flights if each.api == "ShareFetch" and each.is_response and each.records]
    assert (acquired.theme, acquired.target) == ("records", "worker")
    details = acquired.details(simulation.story.origin_ms)
    assert details["batches"][0]["records"][0]["value"] == "tea"
    assert {each.theme for each in flights if each.api == "ShareGroupHeartbeat"} == {"heartbeat"}
