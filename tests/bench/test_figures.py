"""Stored figures: what is kept of a run, what counts as slower, and what is said where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.check import better_of, check, rows_to_check, store
from bench.figures import Figures, NoFigures, Stored, compare, figures_for, missing_titles, path_of
from bench.limits import Machine
from bench.line import Line, Row
from bench.noise import LOOP, SYNC, Measured, Verdict

MACHINE = Machine("Some CPU @ 2.50GHz", 2, "6.1.0", "3.11.2")
FLOOR: Measured = {
    "loop_requests_per_s": 80_000.0,
    "loop_requests_per_s_spread": 0.02,
    "loop_us_per_request": 10.0,
    "loop_p50_ms": 0.2,
    "copy_mb_per_s": 5000.0,
    "sync_p50_ms": 0.5,
}
SLOW_FLOOR: Measured = {
    **FLOOR,
    "loop_requests_per_s": 40_000.0,
    "loop_us_per_request": 20.0,
    "loop_p50_ms": 0.4,
    "sync_p50_ms": 1.0,
}


def row(name: str = "one", bound: str = LOOP) -> Row:
    return Row(name, lambda _: [], bound)


def stored(figures: Measured, floor: Measured = FLOOR) -> Stored:
    return Stored(dict(floor), 0.5, {"a title": figures})


def verdicts(before: Measured, now: Measured, floor: Measured = FLOOR, bound: str = LOOP) -> dict[str, Verdict]:
    line = compare(row(bound=bound), stored(before), [Line("a title", now)], floor)
    return {each.name: each.verdict for each in line}


def test_a_rate_below_the_stored_one_by_more_than_the_noise_is_worse() -> None:
    before = {"messages_per_s": 40_000.0, "messages_per_s_spread": 0.05}
    assert verdicts(before, {"messages_per_s": 37_500.0}) == {"messages_per_s": Verdict.EVEN}
    assert verdicts(before, {"messages_per_s": 35_000.0}) == {"messages_per_s": Verdict.WORSE}
    assert verdicts(before, {"messages_per_s": 50_000.0}) == {"messages_per_s": Verdict.BETTER}


def test_restless_slices_excuse_more() -> None:
    before = {"messages_per_s": 40_000.0, "messages_per_s_spread": 0.2}
    assert verdicts(before, {"messages_per_s": 32_000.0, "messages_per_s_spread": 0.1}) == {
        "messages_per_s": Verdict.EVEN
    }


def test_a_restless_floor_excuses_more() -> None:
    before = {"messages_per_s": 40_000.0}
    restless = {**FLOOR, "loop_requests_per_s_spread": 0.3}
    assert verdicts(before, {"messages_per_s": 32_000.0}, restless) == {"messages_per_s": Verdict.EVEN}
    assert verdicts(before, {"messages_per_s": 32_000.0}) == {"messages_per_s": Verdict.WORSE}


def test_a_machine_of_half_the_pace_is_asked_for_half() -> None:
    before = {"messages_per_s": 40_000.0, "us_per_request": 24.0, "p50_ms": 0.4, "resident_mb": 40.0}
    half = {"messages_per_s": 20_000.0, "us_per_request": 48.0, "p50_ms": 0.8, "resident_mb": 40.0}
    assert set(verdicts(before, half, SLOW_FLOOR).values()) == {Verdict.EVEN}
    assert verdicts(before, half)["us_per_request"] is Verdict.WORSE


def test_on_a_faster_day_more_is_asked_for() -> None:
    before = stored({"messages_per_s": 20_000.0}, SLOW_FLOOR)
    (line,) = compare(row(), before, [Line("a title", {"messages_per_s": 22_000.0})], FLOOR)
    assert line.pace == 2
    assert line.verdict is Verdict.WORSE


def test_memory_is_asked_for_as_it_was_on_any_machine() -> None:
    assert verdicts({"resident_mb": 40.0}, {"resident_mb": 60.0}, SLOW_FLOOR) == {"resident_mb": Verdict.WORSE}


def test_a_row_that_waits_for_the_disk_follows_the_disk() -> None:
    before, now = {"messages_per_s": 10_000.0}, {"messages_per_s": 5_000.0}
    slow_disk = {**FLOOR, "sync_p50_ms": 1.0}
    assert verdicts(before, now, slow_disk, SYNC) == {"messages_per_s": Verdict.EVEN}
    assert verdicts(before, now, slow_disk, LOOP) == {"messages_per_s": Verdict.WORSE}


def test_nothing_follows_from_a_machine_that_is_another_one() -> None:
    crawling = {**FLOOR, "loop_requests_per_s": 8_000.0}
    assert verdicts({"messages_per_s": 40_000.0}, {"messages_per_s": 100.0}, crawling) == {
        "messages_per_s": Verdict.UNCLEAR
    }


def test_lines_and_figures_that_only_one_run_has_are_not_compared() -> None:
    before = Stored(FLOOR, 0.5, {"gone": {"mb_per_s": 1.0}, "a title": {"mb_per_s": 1.0, "p50_ms": 1.0}})
    lines = [Line("a title", {"mb_per_s": 1.0}), Line("new", {"mb_per_s": 1.0})]
    assert [(each.title, each.name) for each in compare(row(), before, lines, FLOOR)] == [("a title", "mb_per_s")]
    assert missing_titles(before, lines) == ["gone"]


def checked_again(first: float, second: float) -> tuple[list[Verdict], list[str]]:
    asked = []

    def again(row: Row) -> tuple[list[Line], Measured]:
        asked.append(row.name)
        return [Line("a title", {"messages_per_s": second})], FLOOR

    figures = Figures(MACHINE, False, {"one": stored({"messages_per_s": 40_000.0})})
    measured = {"one": [Line("a title", {"messages_per_s": first})]}
    findings = check([row()], measured, FLOOR, figures, again)
    return [each.verdict for each in findings.slower], asked


def test_a_row_is_slower_when_it_was_so_twice() -> None:
    assert checked_again(20_000.0, 21_000.0) == ([Verdict.WORSE], ["one"])
    assert checked_again(20_000.0, 40_000.0) == ([], ["one"])
    assert checked_again(40_000.0, 1.0) == ([], [])


def test_of_two_runs_each_figure_counts_by_the_better() -> None:
    before = stored({"messages_per_s": 100.0, "p50_ms": 1.0})
    first = compare(row(), before, [Line("a title", {"messages_per_s": 50.0, "p50_ms": 1.0})], FLOOR)
    second = compare(row(), before, [Line("a title", {"messages_per_s": 100.0, "p50_ms": 5.0})], FLOOR)
    assert {each.name: each.verdict for each in better_of(first, second)} == {
        "messages_per_s": Verdict.EVEN,
        "p50_ms": Verdict.EVEN,
    }


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    figures = Figures(MACHINE, False)
    line = Line("a title", {"messages_per_s": 41_234.56789, "messages_per_s_spread": 0.0123456, "seconds": 1.5})
    store(figures, {"one": [line, Line("left out", {}, note="no Java")], "spark": [Line("Spark", {})]}, FLOOR)
    path = path_of(MACHINE, False, tmp_path)
    figures.write(path)
    result = figures_for(MACHINE, False, folder=tmp_path)
    assert result.machine == MACHINE
    assert list(result.rows) == ["one"]
    assert result.rows["one"].lines == {"a title": {"messages_per_s": 41_235.0, "messages_per_s_spread": 0.012346}}
    assert result.rows["one"].floor == FLOOR


def test_storing_some_rows_keeps_the_others(tmp_path: Path) -> None:
    path = path_of(MACHINE, False, tmp_path)
    figures = Figures(MACHINE, False)
    store(figures, {"one": [Line("a", {"mb_per_s": 1.0})], "fetch": [Line("b", {"mb_per_s": 2.0})]}, FLOOR)
    figures.write(path)
    again = Figures.read(path)
    store(again, {"fetch": [Line("b", {"mb_per_s": 3.0})]}, SLOW_FLOOR)
    again.write(path)
    result = Figures.read(path).rows
    assert (result["one"].lines["a"]["mb_per_s"], result["one"].floor) == (1.0, FLOOR)
    assert (result["fetch"].lines["b"]["mb_per_s"], result["fetch"].floor) == (3.0, SLOW_FLOOR)


def test_a_machine_has_a_file_of_its_own_for_each_size(tmp_path: Path) -> None:
    assert path_of(MACHINE, False, tmp_path).name == "some-cpu-2-50ghz-2.json"
    assert path_of(MACHINE, True, tmp_path).name == "some-cpu-2-50ghz-2-quick.json"


def test_without_figures_of_this_machine_it_says_what_there_is_and_what_to_do(tmp_path: Path) -> None:
    Figures(Machine("Other", 8, "6", "3.12"), False).write(tmp_path / "other-8.json")
    with pytest.raises(NoFigures, match=r"no figures of this machine.*other-8\.json.*--store"):
        figures_for(MACHINE, False, folder=tmp_path)


def test_short_slices_are_not_compared_with_long_ones(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    Figures(MACHINE, True).write(path)
    with pytest.raises(NoFigures, match="figures with --quick, this run is without"):
        figures_for(MACHINE, False, path)


@pytest.mark.parametrize("text", ["", "[]", '{"rows": {}}', '{"machine": {}, "quick": false, "rows": {"one": 3}}'])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(NoFigures, match="is no file of figures"):
        Figures.read(path)


def test_rows_without_figures_are_not_run_and_those_asked_for_by_name_are_refused() -> None:
    figures = Figures(MACHINE, False, {"one": stored({"mb_per_s": 1.0})})
    rows = [row("one"), row("fetch")]
    assert [each.name for each in rows_to_check(rows, figures, None)] == ["one"]
    with pytest.raises(NoFigures, match="no figures of fetch are stored"):
        rows_to_check(rows, figures, ["fetch"])
    with pytest.raises(NoFigures, match="no row that is measured any more"):
        rows_to_check([row("other")], figures, None)


def test_the_files_of_the_repository_can_be_read() -> None:
    folder = Path(__file__).parents[2] / "bench" / "figures"
    paths = list(folder.glob("*.json"))
    if not paths:
        pytest.skip("no figures are stored yet: make bench ARGS=--store, on a quiet machine")
    for path in paths:
        figures = Figures.read(path)
        assert figures.rows, path
        assert path == path_of(figures.machine, figures.quick, folder)
        for each in figures.rows.values():
            assert {"loop_requests_per_s", "copy_mb_per_s", "sync_p50_ms"} <= each.floor.keys()
        json.loads(path.read_text())
