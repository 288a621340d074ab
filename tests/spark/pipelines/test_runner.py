"""Runs with scripted queries: states, failures, stops, and reports."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millpond.spark.pipelines import kinds, runner
from millpond.spark.pipelines.background import Background
from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.declaration import Pipeline
from millpond.spark.pipelines.kind import Kind
from millpond.spark.pipelines.lock import AlreadyRunning, lock_pipeline
from millpond.spark.pipelines.progress import Snapshot
from millpond.spark.pipelines.runner import Outcome, PipelineFailed
from millpond.spark.pipelines.status import read_status
from millpond.spark.pipelines.stop_request import StopRequest
from millpond.spark.pipelines.tables import Job


class ScriptedQuery:
    """A query that follows a script."""

    def __init__(self, batches: int, error: str = "", error_at: int = 0, is_stuck: bool = False) -> None:
        self._left = batches
        self._error, self._error_at, self._done = error, error_at, 0
        self._is_stuck = is_stuck
        self.isActive = True
        self.stops = 0
        self.status = {"message": "Processing new data", "isTriggerActive": is_stuck}

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        if self._done:
            return {"batchId": self._done - 1, "numInputRows": 10, "sink": {"numOutputRows": 10}}
        return None

    def exception(self) -> Exception | None:
        if self._error and self._done >= self._error_at:
            self.isActive = False
            return RuntimeError(self._error)
        if self.isActive and not self._is_stuck:
            self._done += 1
            self.isActive = self._done < self._left
        return None

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False


@dataclass(frozen=True, kw_only=True)
class ScriptedJob(Job):
    kind: ClassVar[str] = "act"
    reads_source: ClassVar[bool] = False


Start = Callable[[JobContext, ScriptedJob], Any]
Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs jobs by name, each with the query that its function returns."""
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(runner, "PUBLISH_SECONDS", 0.01)

    def starts_later(context: JobContext, job: ScriptedJob, start: Start) -> Any:
        return lambda: start(context, job)

    def go(starts: dict[str, Start], plans: dict[str, Any] | None = None, **how: Any) -> Outcome:
        kind = Kind(
            name="act",
            doc="As scripted.",
            job=ScriptedJob,
            plan=lambda context, job: (plans or {}).get(job.name, starts_later)(context, job, starts[job.name]),
            outputs=lambda job: {"table": f"lake/{job.name}"},
        )
        monkeypatch.setattr(kinds, "KINDS", {"act": kind})
        jobs = tuple(ScriptedJob(name=name) for name in starts)
        return Pipeline(name="orders", jobs=jobs, checkpoint=str(tmp_path)).run(spark=object(), **how)

    return go


def test_a_run_ends_when_all_of_its_jobs_have_ended(run: Run, tmp_path: Path) -> None:
    snapshots: list[Snapshot] = []
    outcome = run({"short": lambda *_: ScriptedQuery(2), "long": lambda *_: ScriptedQuery(5)}, show=snapshots.append)
    assert outcome.state == "finished"
    assert [(job.name, job.state, job.batch) for job in outcome.snapshot.jobs] == [
        ("short", "finished", 1),
        ("long", "finished", 4),
    ]
    assert outcome.snapshot.jobs[1].writes == {"table": "lake/long"}
    assert (snapshots[0].state, snapshots[-1].state) == ("starting", "finished")
    status = read_status(tmp_path)
    assert status is not None
    assert (status.condition, len(status.snapshot.jobs)) == ("finished", 2)


def test_a_failed_job_stops_all_jobs_and_is_named(run: Run, tmp_path: Path) -> None:
    healthy = ScriptedQuery(1_000_000)
    error = "[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File x\nmillpond.errors.X: no such topic\n\n"
    with pytest.raises(PipelineFailed) as caught:
        run({"good": lambda *_: healthy, "bad": lambda *_: ScriptedQuery(9, error, error_at=2)})
    assert str(caught.value) == "bad failed: no such topic"
    assert healthy.stops == 1
    good, bad = caught.value.snapshot.jobs
    assert (good.state, bad.state, bad.error, bad.batch) == ("stopped", "failed", "no such topic", 1)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", "bad failed: no such topic")


def test_a_job_that_does_not_start_fails_the_run(run: Run) -> None:
    healthy = ScriptedQuery(1_000_000)

    def refuse(*_: Any) -> Any:
        raise ValueError("there is no column `valeu`")

    with pytest.raises(PipelineFailed, match="bad did not start: there is no column `valeu`") as caught:
        run({"good": lambda *_: healthy, "bad": refuse, "never": lambda *_: ScriptedQuery(1)})
    assert healthy.stops == 1
    assert [job.state for job in caught.value.snapshot.jobs] == ["stopped", "starting", "starting"]


def test_no_job_starts_before_all_are_planned(run: Run) -> None:
    healthy, began = ScriptedQuery(1_000_000), []

    def refuse(*_: Any) -> Any:
        raise ValueError("there is no column `valeu`")

    with pytest.raises(PipelineFailed, match="no job was started: there is no column `valeu`") as caught:
        run(
            {"good": lambda *_: began.append(1) or healthy, "bad": lambda *_: ScriptedQuery(1)}, plans={"bad": refuse}
        )
    assert (began, healthy.stops) == ([], 0)
    assert "bad cannot be planned" in str(caught.value)
    assert [job.state for job in caught.value.snapshot.jobs] == ["starting", "starting"]


def test_a_lost_connection_to_spark_fails_the_run(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Gone(ScriptedQuery):
        def exception(self) -> Exception | None:
            raise ConnectionRefusedError("nobody listens")

    with pytest.raises(PipelineFailed, match="Spark's own process ended"):
        run({"a": lambda *_: Gone(3)})
    assert "the run broke off" in caplog.text
    status = read_status(tmp_path)
    assert status is not None
    assert status.condition == "failed"


def test_a_stop_waits_for_the_batch_for_a_limited_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.3)
    stopping, stuck, quick = StopRequest(), ScriptedQuery(1, is_stuck=True), ScriptedQuery(1_000_000)
    threading.Timer(0.2, stopping.request).start()
    began = time.monotonic()
    outcome = run({"stuck": lambda *_: stuck, "quick": lambda *_: quick}, stopping=stopping)
    assert time.monotonic() - began > 0.4
    assert outcome.state == "stopped"
    assert (stuck.stops, quick.stops) == (1, 1)
    assert {job.state for job in outcome.snapshot.jobs} == {"stopped"}


def test_a_query_that_fails_again_at_once_has_not_finished(run: Run) -> None:
    class Late(ScriptedQuery):
        def __init__(self) -> None:
            super().__init__(1, runner.LATE_PROCESS)
            self.isActive = False

    with pytest.raises(PipelineFailed, match=runner.LATE_PROCESS):
        run({"a": lambda *_: Late(), "b": lambda *_: ScriptedQuery(1)})


def test_a_source_that_started_too_late_is_restarted(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    late = [ScriptedQuery(1, runner.LATE_PROCESS), ScriptedQuery(1, runner.LATE_PROCESS), ScriptedQuery(3)]
    assert run({"a": lambda *_: late.pop(0)}).state == "finished"
    assert caplog.text.count("a: its Python process did not come up in time") == 2
    always: list[ScriptedQuery] = []

    def never(*_: Any) -> ScriptedQuery:
        always.append(ScriptedQuery(1, runner.LATE_PROCESS))
        return always[-1]

    with pytest.raises(PipelineFailed, match="a failed: Python worker failed to connect back"):
        run({"a": never})
    assert len(always) == runner.TRIES_MAX
    with pytest.raises(PipelineFailed):
        run({"a": lambda *_: ScriptedQuery(9, runner.LATE_PROCESS, error_at=2)})


def test_background_work_is_a_job(run: Run) -> None:
    def work(report: Background) -> None:
        report.add_rows(33)

    def start(context: JobContext, job: ScriptedJob) -> Any:
        context.set_figure("speed", "slow")
        return context.in_background(work)()

    (job,) = run({"replay": start}).snapshot.jobs
    assert (job.rows_out, job.state, job.figures) == (33, "finished", {"speed": "slow"})


def test_a_second_run_of_a_pipeline_is_refused(run: Run, tmp_path: Path) -> None:
    with lock_pipeline(tmp_path, "orders"), pytest.raises(AlreadyRunning):
        run({"a": lambda *_: ScriptedQuery(1)})
    assert run({"a": lambda *_: ScriptedQuery(1)}).state == "finished"


def test_warnings_go_to_the_log_unless_logging_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    with runner.logging_to(tmp_path):
        root.warning("for whoever runs the tests")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(root, "handlers", [])
    with runner.logging_to(tmp_path):
        root.warning("for the log")
    assert (tmp_path / "spark.log").read_text().endswith("WARNING for the log\n")
    assert root.handlers == []


def test_metrics_follow_the_run(run: Run) -> None:
    import urllib.request

    seen: list[str] = []

    def show(snapshot: Snapshot) -> None:
        if snapshot.state == "running" and snapshot.jobs[0].batch and not seen:
            seen.append(urllib.request.urlopen(snapshot.metrics, timeout=60).read().decode())

    run({"a": lambda *_: ScriptedQuery(50)}, show=show, metrics="127.0.0.1:0")
    assert 'millpond_pipeline_rows_out_total{pipeline="orders",job="a",kind="act"}' in seen[0]
