"""The status of runs, also of a run that was killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from millpond.spark.pipelines.lock import lock_pipeline
from millpond.spark.pipelines.progress import JobFigures, Snapshot
from millpond.spark.pipelines.status import FILE, find_statuses, read_status, write_status

JOB = JobFigures("archive", "archive", "waiting", 7, 5.0, 9.0, 0)
RUN = Snapshot("orders", "running", 17, 1000, 2000, (JOB, replace(JOB, name="bad", state="failed")))


def test_a_run_is_running_while_it_holds_its_lock(tmp_path: Path) -> None:
    with lock_pipeline(tmp_path, "orders"):
        write_status(tmp_path, RUN)
        result = read_status(tmp_path)
        assert result is not None
        assert (result.condition, result.is_running, result.snapshot) == ("running", True, RUN)
    dead = read_status(tmp_path)
    assert dead is not None
    assert dead.condition == "dead"
    assert [(job.state, job.input_per_second, job.batch) for job in dead.snapshot.jobs] == [
        ("stopped", None, 7),
        ("failed", None, 7),
    ]


def test_an_ended_run_keeps_its_state(tmp_path: Path) -> None:
    for state in ("stopped", "finished", "failed"):
        write_status(tmp_path, replace(RUN, state=state))
        result = read_status(tmp_path)
        assert result is not None
        assert (result.condition, result.is_running) == (state, False)


def test_every_pipeline_of_a_folder_is_found_by_name(tmp_path: Path) -> None:
    for name in ("b", "a", "empty", "torn"):
        (tmp_path / name).mkdir()
    write_status(tmp_path / "a", replace(RUN, name="a"))
    write_status(tmp_path / "b", replace(RUN, name="b"))
    (tmp_path / "torn" / FILE).write_text('{"name": "torn"')
    (tmp_path / "file").write_text("")
    assert [(path.name, status.snapshot.name) for path, status in find_statuses(tmp_path)] == [("a", "a"), ("b", "b")]
    assert list(find_statuses(tmp_path / "nowhere")) == []


def test_a_status_is_replaced_atomically(tmp_path: Path) -> None:
    write_status(tmp_path, RUN)
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
