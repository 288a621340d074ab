"""A recording replays identically, observed or not; impossible actions are reported; everything has a limit."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.sim.machines.run import Run, Violation
from millpond.sim.simulator.actions import (
    AddConsumer,
    AddPartitions,
    CrashConsumer,
    CreateTopic,
    Cut,
    Elect,
    Heal,
    Produce,
    ResetOffsets,
    SetConfig,
    StartNode,
    StopConsumer,
    StopNode,
    Transact,
)
from millpond.sim.simulator.campaigns import MACHINES, SCENARIOS, play_campaign
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.recording import BadLink, CampaignSeed, Recording, decode, encode, recording_of
from millpond.sim.simulator.simulation import CLIENTS_MAX, Simulation, TooMuch
from millpond.sim.simulator.snapshot import Observer

STORY = recording_of(
    (
        CreateTopic(partitions=2),
        300,
        AddConsumer(),
        AddConsumer("billing-2"),
        500,
        Produce(count=10, keys=("ann", "bob")),
        100,
        StopNode("leader", power=True),
        300,
        CrashConsumer(),
        2000,
        StartNode(),
        2000,
    ),
    seed=7,
)


def play(tape: Recording, step_ms: int | None = None, *, looks: bool = False) -> Simulation:
    simulation = Simulation(tape)
    observer = Observer(simulation)
    for moment in range(0, tape.end_ms, step_ms or tape.end_ms):
        simulation.run_to(moment)
        if looks:
            observer.look()
    simulation.run_to(tape.end_ms)
    return simulation


def test_the_same_link_is_the_same_run() -> None:
    first = play(STORY)
    again = decode(encode(STORY))
    assert isinstance(again, Recording)
    second = play(again, 37, looks=True)
    assert first.digest() == second.digest()
    assert Observer(first).look() == Observer(second).look()


def test_a_tape_that_grows_is_the_run_of_the_whole_tape() -> None:
    """As the page plays: an action at a time, each at the moment where one is."""
    tape = Recording(seed=7)
    grown = Simulation(tape)
    for at_ms, action in STORY.moves:
        tape = tape.until(at_ms).then(action)
        grown.run_to(at_ms)
        grown.go_on(tape)
        grown.run_to(at_ms)
    grown.go_on(tape.until(STORY.end_ms))
    grown.run_to(STORY.end_ms)
    assert encode(grown.tape) == encode(STORY)
    assert grown.digest() == play(STORY).digest()


def test_another_seed_is_another_run() -> None:
    short = STORY.cut(800)
    assert play(short).digest() != play(Recording(8, short.nodes, short.moves, short.end_ms)).digest()


def test_what_cannot_be_is_told_and_changes_nothing() -> None:
    impossible = (
        Produce("nowhere"),
        AddConsumer(topic="nowhere"),
        AddPartitions("nowhere"),
        SetConfig("nowhere"),
        Transact("nowhere"),
        ResetOffsets(topic="nowhere"),
        StopConsumer("nobody"),
        CrashConsumer("nobody"),
        CrashConsumer("nobody", between=True),
        StopNode("5"),
        StopNode("leader", topic="nowhere"),
        StartNode(),
        Cut("nobody", "others"),
        CreateTopic(),
        AddPartitions(partitions=2),
        AddPartitions(partitions=12),
        CreateTopic("too-many", partitions=12),
        CreateTopic("far-too-many", partitions=12),
    )
    simulation = Simulation(
        recording_of((CreateTopic(), 400, *impossible, 100, Heal(), Elect("nowhere"), 500), nodes=1)
    )
    simulation.run_to(1000)
    refused = [line for line in simulation.story.lines if line.who == "simulator"]
    assert len(refused) == len(impossible) - 2
    assert set(simulation.topics) == {"orders", "too-many"}
    assert Observer(simulation).look()["verdict"]["acknowledged"] == 0


def test_a_run_has_a_limit_of_real_time() -> None:
    asked = iter(range(1_000_000))
    simulation = Simulation(recording_of((CreateTopic(), 60_000)), lambda: next(asked) > 20)
    with pytest.raises(TooMuch, match="was stopped after"):
        simulation.run_to(60_000)
    with pytest.raises(TooMuch, match="not ready in time"):
        Simulation(recording_of((CreateTopic(), 60_000)), lambda: True)


def test_records_and_clients_are_limited() -> None:
    many = [Produce(count=500) for _ in range(7)]
    crew = [AddConsumer(f"c{number}") for number in range(CLIENTS_MAX + 1)]
    simulation = Simulation(recording_of((CreateTopic(partitions=1, replication=1), 300, *many, *crew, 1), nodes=1))
    simulation.run_to(301)
    assert len(simulation.ledger.records) == 3_000
    assert len(simulation.consumers) + len(simulation.producers) == CLIENTS_MAX


def test_records_that_consumers_make_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.sim.simulator.simulation.MADE_RECORDS_MAX", 30)
    tape = recording_of((CreateTopic(partitions=1, replication=1), 300, Produce(count=20), 60_000), nodes=1)
    simulation = Simulation(tape)
    simulation.run_to(600)
    made = simulation.ledger.records[1]
    for _ in range(20):
        # As a consumer does that writes what it has read.
        simulation.ledger.new_record(replace(made))
    with pytest.raises(TooMuch, match="was stopped after"):
        simulation.run_to(60_000)


def test_records_that_come_one_after_the_other_are_counted_when_they_are_asked_for() -> None:
    many = [Produce(count=500, every_ms=1) for _ in range(7)]
    simulation = Simulation(recording_of((CreateTopic(partitions=1, replication=1), 300, *many, 600), nodes=1))
    simulation.run_to(305)
    assert len(simulation.ledger.records) < 100
    refused = [line for line in simulation.story.lines if line.who == "simulator"]
    assert len(refused) == 1, "the seventh"
    simulation.run_to(900)
    assert len(simulation.ledger.records) == 3_000
    assert not simulation.ledger.promise(1)


def test_messages_are_read_from_the_wire() -> None:
    simulation = Simulation(recording_of((CreateTopic(partitions=1), 300, Produce(value="tea", keys=("ann",)), 200)))
    simulation.run_to(500)
    flights = simulation.flights.since(simulation.story.origin_ms + 300)
    sent = [each for each in flights if each.api == "Produce" and not each.is_response]
    heard = [each for each in flights if each.api == "Produce" and each.is_response]
    assert len(sent) == len(heard) == 1
    assert (sent[0].source, sent[0].theme, sent[0].records) == ("producer", "records", 1)
    details = sent[0].details(simulation.story.origin_ms)
    assert details["batches"][0]["records"][0]["value"] == "tea"
    assert details["body"]["acks"] == -1
    assert heard[0].source == sent[0].target
    copied = [each for each in flights if each.theme == "replication"]
    assert {each.source for each in copied} == {sent[0].target}
    assert {each.target for each in copied} == {f"node{number}" for number in (1, 2, 3)} - {sent[0].target}
    assert simulation.flights.by_number(sent[0].number) is sent[0]


def test_what_a_dead_node_sent_is_lost() -> None:
    lesson = LESSONS["acks-1"]
    simulation = Simulation(lesson.tape)
    simulation.run_to(lesson.question_ms + 1)
    assert any(each.is_lost and each.theme == "replication" for each in simulation.flights.since(0))


def test_a_campaign_is_played_for_its_story() -> None:
    with pytest.raises(BadLink, match="there are faults, racks"):
        play_campaign(CampaignSeed("nonsense", 1))
    played = play_campaign(CampaignSeed("records", 3)).shape()
    assert played["link"] == "campaign.records.3"
    assert "Plan" in played["plan"]
    assert played["findings"] == []
    moments = [line["at_ms"] for line in played["story"]]
    assert moments == sorted(moments)
    assert len(moments) == played["story_lines"] > 10


def test_a_seed_that_fails_has_a_story_and_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("a bug of the node")

    monkeypatch.setattr("millpond.sim.records.scenario.Scenario._judge", fail)
    played = play_campaign(CampaignSeed("records", 3))
    assert "a bug of the node" in played.findings[-1]
    assert len(played.lines) > 10


def test_a_machine_is_played_for_what_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_campaign(CampaignSeed("quorum", 1)).findings == []

    def fail(self: Run, *_: object) -> None:
        raise Violation("two leaders of one epoch")

    monkeypatch.setattr(Run, "run_until_well", fail)
    played = play_campaign(CampaignSeed("quorum", 1))
    assert played.findings == ["two leaders of one epoch"]
    assert len(played.lines) > 10
    assert all(line.at_ms >= 0 and line.text for line in played.lines)


def test_every_campaign_by_seeds_has_links() -> None:
    """What `tests/campaigns` plays by a seed alone can be opened in the simulator."""
    assert {*SCENARIOS, *MACHINES} == {
        "faults", "racks", "compacted", "members", "moves", "upgrade", "wide", "full", "crews", "coordination",
        "records", "quorum", "replication", "share_window", "voters",
    }  # fmt: skip


def test_the_campaign_script_counts_every_fault_of_a_machine() -> None:
    ran = run_campaign("voters", "--seeds", "2", "--jobs", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "voters: 2 seeds in " in ran.stdout
    outcomes = [MACHINES["voters"](seed) for seed in range(2)]
    assert f"committed {sum(each.committed for each in outcomes):,}\n" in re.sub(" +", " ", ran.stdout)
    for name in {name for each in outcomes for name in each.faults}:
        assert f"  {name.replace('_', ' ')} " in ran.stdout


@pytest.mark.parametrize(
    ("words", "takers"), [("records --shrink 1", "compacted, faults"), ("all --nodes 3", "compacted, crews, faults")]
)
def test_the_campaign_script_refuses_options_that_a_scenario_does_not_take(words: str, takers: str) -> None:
    ran = run_campaign(*words.split())
    assert ran.returncode == 2
    assert f"{words.split()[1]} is only for these: {takers}" in ran.stderr


def run_campaign(*words: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parents[2] / "campaigns" / "simulate.py"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=200)
