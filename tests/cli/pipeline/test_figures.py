"""How a pipeline looks: on a terminal a box that fits, elsewhere lines."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from millpond.cli.pipeline.figures import cells, drawn, line
from millpond.spark.pipelines.progress import JobFigures, Snapshot

NOW_MS = 1_800_000_000_000
JOB = JobFigures("archive", "archive", "running", 12, 1204.4, 3.21, 320, 1234, 120_000, 119_988, 12, late=7)
JOBS = (JOB, JobFigures("latest", "latest"))
RUN = Snapshot("orders", "running", 17, NOW_MS - 90_000, NOW_MS, JOBS, "local[*]", "o")


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)


def shown(snapshot: Snapshot, condition: str | None = None, width: int = 80) -> list[str]:
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    screen.print(drawn(snapshot, condition))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def test_cells_say_what_is_not_known() -> None:
    assert cells(JOB) == ("archive", "running", "12", "1,204", "3.2", "320", "1.2s", "119,988", "12")
    assert cells(JobFigures("a", "a")) == ("a", "starting", *["–"] * 7)


def test_a_line_has_only_what_is_known() -> None:
    assert line(JOB) == (
        "archive: running  batch=12  in/s=1,204  done/s=3.2  lag=320  took=1.2s  rows_out=119,988  bad=12  late=7"
    )
    result = {"no_id": 0, "hot": 5, "worst_rule": "id > 0"}
    assert line(JobFigures("a", "a", figures=result)) == "a: starting  hot=5  worst rule=id > 0"


def test_the_box_fits_a_terminal_of_80_columns() -> None:
    lines = shown(replace(RUN, dead_letters={"orders.dlq": 3}, error="archive failed: " + "word " * 40))
    assert all(len(each) <= 80 for each in lines)
    assert len({len(each) for each in lines}) == 1
    text = "\n".join(lines)
    for part in (
        "╭─ orders ● running 1m 30s",
        "reads o on local[*]",
        "archive: late 7",
        "orders.dlq +3",
        "archive failed",
    ):
        assert part in text


def test_a_run_that_is_over_says_since_when() -> None:
    over = replace(RUN, state="stopped", at_ms=NOW_MS - 60_000)
    assert "● stopped after 30s, 1m ago" in shown(over)[0]
    assert "● dead after 30s" in shown(over, "dead")[0]
    assert "ago" not in shown(replace(RUN, state="stopped"))[0], "just now"
