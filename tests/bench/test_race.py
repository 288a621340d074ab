"""Races: whose turn it is, who is ahead, and who is left out; the contenders here count instead of running."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from bench.line import LeftOut
from bench.measure import Plan
from bench.noise import Measured, Verdict
from bench.race import FAILED, OURS, Race, Slice, Way, in_turn, race_data, race_table_of, run_race, standing_of
from bench.races import ALL_SYNC, NONE_SYNC, RACES


class Runner:
    """A contender that writes down its turns."""

    warm_seconds = 1.0

    def __init__(self, name: str, turns: list[str], rate: float = 100.0, reason: str = "") -> None:
        self.name, self.title = name, name.title()
        self._turns, self._rate, self._reason = turns, rate, reason

    def runs(self, race: Race) -> bool:
        return race.name != "not for me"

    def enter(self, stack: ExitStack, race: Race, plan: Plan, way: Way) -> Slice:
        if self._reason:
            raise LeftOut(self._reason)
        stack.callback(self._turns.append, f"{self.name} leaves")
        return self._slice

    def _slice(self, seconds: float) -> Measured:
        self._turns.append(self.name)
        return {"seconds": seconds, "messages_per_s": self._rate, "cpu_s_per_million": 2.0}


def race(name: str = "one", figure: str = "messages_per_s") -> Race:
    def nobody(*_: object) -> Slice:
        raise AssertionError("these contenders know what to do by themselves")

    return Race(name, "a title", nobody, figure=figure)


def test_slices_take_turns_in_rotating_order() -> None:
    turns: list[str] = []

    def of(name: str) -> Slice:
        return lambda seconds: turns.append(name) or {"seconds": seconds}  # type: ignore[func-returns-value]

    in_turn(Plan(slices=3, slice_seconds=0.5), {"a": of("a"), "b": of("b")})
    assert turns == ["a", "b", "b", "a", "a", "b"]


def test_who_cannot_run_is_left_out_with_a_reason_and_the_others_run() -> None:
    turns: list[str] = []
    contenders = [Runner(OURS, turns), Runner("kafka", turns, reason="no Java"), Runner("nats", turns)]
    way = Way("all sync", unable={"nats": "syncs by a clock"})
    placed = run_race(race(), way, contenders, Plan(slices=1, quick=True))
    assert {each.contender: each.note for each in placed} == {
        OURS: "",
        "kafka": "no Java",
        "nats": "syncs by a clock",
    }
    assert [each.contender for each in placed if each.figures] == [OURS]
    assert turns == [OURS, OURS, f"{OURS} leaves"]


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_who_breaks_is_out_of_it_and_the_others_run_on(turn: int) -> None:
    turns: list[str] = []
    weak = Runner("kafka", turns)
    lives = iter([None] * turn)

    def one(seconds: float) -> Measured:
        if next(lives, "over") == "over":
            raise RuntimeError("the broker [1] is gone")
        return {"seconds": 1.0, "messages_per_s": 1.0}

    weak.enter = lambda *_: one  # type: ignore[method-assign]
    placed = run_race(race(), Way("as they come"), [Runner(OURS, turns), weak], Plan(slices=3, quick=True))
    ours, theirs = placed
    assert (theirs.figures, theirs.note) == ({}, f"{FAILED}the broker [1] is gone")
    assert (ours.note, turns.count(OURS)) == ("", 4)
    assert race_table_of(placed, {}, "title").row_count == 1 + 2


def test_what_a_contender_has_nothing_like_is_not_in_the_table() -> None:
    assert run_race(race("not for me"), Way("as they come"), [Runner("redis", [])], Plan(slices=1)) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "speed", "verdict"),
    [
        (150.0, 100.0, 1.5, Verdict.BETTER),
        (105.0, 100.0, 1.05, Verdict.EVEN),
        (40.0, 100.0, 0.4, Verdict.WORSE),
    ],
)
def test_who_is_ahead_of_a_rate(ours: float, theirs: float, speed: float, verdict: Verdict) -> None:
    standing = standing_of(race(), {"messages_per_s": ours}, {"messages_per_s": theirs})
    assert standing is not None
    assert standing.speed == pytest.approx(speed)
    assert standing.verdict is verdict


def test_who_is_ahead_of_a_wait() -> None:
    standing = standing_of(race(figure="p99_ms"), {"p99_ms": 1.0}, {"p99_ms": 4.0})
    assert standing is not None
    assert (standing.speed, standing.verdict) == (4.0, Verdict.BETTER)


def test_restless_slices_make_it_even() -> None:
    ours = {"messages_per_s": 150.0, "messages_per_s_spread": 0.4}
    theirs = {"messages_per_s": 100.0, "messages_per_s_spread": 0.2}
    standing = standing_of(race(), ours, theirs)
    assert standing is not None
    assert standing.verdict is Verdict.EVEN


def test_the_processor_is_compared_by_what_both_have() -> None:
    standing = standing_of(
        race(),
        {"messages_per_s": 1.0, "cpu_s_per_million": 1.0, "us_per_request": 1.0},
        {"messages_per_s": 1.0, "cpu_s_per_million": 4.0},
    )
    assert standing is not None
    assert standing.cpu == 0.25


def test_no_figure_no_verdict() -> None:
    assert standing_of(race(), {}, {"messages_per_s": 1.0}) is None


def test_the_table_has_a_line_for_each_and_the_data_all_figures() -> None:
    turns: list[str] = []
    contenders = [Runner(OURS, turns, 50.0), Runner("kafka", turns), Runner("redis", turns, reason="none here")]
    placed = run_race(race(), Way("as they come"), contenders, Plan(slices=2, quick=True))
    assert race_table_of(placed, {}, "title").row_count == 1 + 3
    data = race_data(placed)
    assert [each["who"] for each in data] == [OURS.title(), "Kafka", "Redis"]
    assert data[2]["note"] == "none here"


def test_every_race_is_there_once_and_equal_durability_tells_everybody() -> None:
    names = [each.name for each in RACES]
    assert len(names) == len(set(names))
    peers = {"kafka", "redis", "nats", "rabbitmq"}
    assert ALL_SYNC.settings.keys() | ALL_SYNC.unable.keys() >= peers
    assert NONE_SYNC.settings[OURS] == {"flush.ack": "never"}
