"""Progress: Spark's reports per batch become current figures and totals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millpond.spark.pipelines import progress as p
from millpond.spark.pipelines.progress import JobFigures, JobWatch, Snapshot, lag_of, read_offsets


class Query:
    """A query with scripted progress."""

    def __init__(self) -> None:
        self.isActive = True
        self.recentProgress: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.status: dict[str, Any] = {"message": "Initializing sources", "isDataAvailable": False}

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False


def batch(number: int, rows: int, *, at: int = 0, end: int = 0, latest: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "batchId": number,
        "timestamp": f"2026-11-15T05:19:{at:02d}Z",
        "numInputRows": rows,
        "inputRowsPerSecond": rows / 2,
        "processedRowsPerSecond": float(rows),
        "durationMs": {"triggerExecution": 1200, "addBatch": 900},
        "sources": [
            {
                "endOffset": json.dumps({"orders": {"0": end}}),
                "latestOffset": json.dumps({"orders": {"0": latest}}),
            }
        ],
        "sink": {"numOutputRows": -1},
        **more,
    }


def test_a_job_before_its_first_batch() -> None:
    assert JobWatch("a", "drip").look(Query()) == JobFigures("a", "drip")


def test_a_job_in_its_first_batch_is_running() -> None:
    query = Query()
    query.status = {"message": "Processing new data", "isDataAvailable": True, "isTriggerActive": True}
    assert JobWatch("a", "drip").look(query).state == "running"


def test_rates_are_of_the_last_batch_and_totals_of_all() -> None:
    query, watch = Query(), JobWatch("archive", "archive")
    query.recentProgress = [batch(0, 100, end=100, latest=350)]
    first = watch.look(query)
    assert (first.state, first.batch, first.rows_in, first.lag, first.batch_ms) == ("running", 0, 100, 250, 1200)
    assert (first.input_per_second, first.done_per_second, first.rows_out) == (50, 100, None)
    assert watch.look(query).rows_in == 100, "the same batch seen twice counts once"
    query.recentProgress += [batch(number, 10, end=100 + 10 * number, latest=350) for number in range(1, 6)]
    assert watch.look(query).rows_in == 150, "batches between two looks count"


def test_an_idle_stream_is_waiting_and_counts_nothing_twice() -> None:
    query, watch = Query(), JobWatch("a", "archive")
    counted = {"observedMetrics": {"c": {"bad": 3}}, "stateOperators": [{"numRowsDroppedByWatermark": 2}]}
    query.recentProgress = [batch(4, 100, end=100, latest=100, **counted)]
    watch.look(query)
    for second in range(1, 4):
        idle = batch(5, 0, at=second, end=100, latest=100, **counted, durationMs={"triggerExecution": 3})
        query.recentProgress.append(idle)
        figures = watch.look(query)
    assert (figures.state, figures.rows_in, figures.bad, figures.late, figures.lag) == ("waiting", 100, 3, 2, 0)
    assert (figures.batch, figures.batch_ms) == (4, 1200)


def test_an_idle_report_does_not_hide_the_batch_before_it() -> None:
    query, watch = Query(), JobWatch("a", "archive")
    query.recentProgress = [batch(0, 100), batch(1, 0, at=1, durationMs={"triggerExecution": 3})]
    assert (watch.look(query).rows_in, watch.look(query).batch) == (100, 0)
    query.recentProgress = [batch(number, 10, at=number) for number in range(3, 40)]
    assert watch.look(query).rows_in == 470, "those that Spark has forgotten cannot be counted"


def test_a_batch_that_only_closes_windows_counts() -> None:
    query, watch = Query(), JobWatch("a", "aggregate")
    query.recentProgress = [batch(0, 100, sink={"numOutputRows": 0}), batch(1, 0, at=1, sink={"numOutputRows": 12})]
    assert (watch.look(query).rows_out, watch.look(query).batch) == (12, 1)


def test_observed_figures_are_added_up() -> None:
    query, watch = Query(), JobWatch("a", "quality")
    watch.figures["worst rule"] = "id > 0"
    for number in range(3):
        row = {"bad": 2, "rows_out": 5, "no_id": 1, "share": 0.5, "is_new": True}
        query.recentProgress.append(batch(number, 7, observedMetrics={"counts": row}))
        figures = watch.look(query)
    assert (figures.bad, figures.rows_out) == (6, 15)
    assert figures.figures == {"no_id": 3, "worst rule": "id > 0"}


def test_sink_rows_state_and_watermark() -> None:
    query, watch = Query(), JobWatch("a", "aggregate")
    operators = [{"numRowsTotal": 30, "numRowsDroppedByWatermark": 4}, {"numRowsTotal": 12}]
    for number in range(2):
        more = {"sink": {"numOutputRows": 8}, "stateOperators": operators, "eventTime": {"watermark": "2026-01-01"}}
        query.recentProgress.append(batch(number, 10, **more))
        figures = watch.look(query)
    assert (figures.rows_out, figures.late, figures.state_rows, figures.watermark) == (16, 8, 42, "2026-01-01")


def test_old_rates_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    query, watch = Query(), JobWatch("a", "archive")
    query.recentProgress = [batch(0, 100)]
    now = p.time.monotonic()
    assert watch.look(query).input_per_second == 50
    monkeypatch.setattr(p.time, "monotonic", lambda: now + 60)
    assert watch.look(query).input_per_second == 0


def test_a_stopped_query_is_finished_or_failed() -> None:
    query, watch = Query(), JobWatch("a", "archive")
    query.recentProgress = [batch(0, 1)]
    query.isActive = False
    assert watch.look(query).state == "finished"
    query.error = ValueError("x")
    assert watch.look(query).state == "failed"


def test_rates_that_are_not_finite_are_unknown() -> None:
    query, watch = Query(), JobWatch("a", "archive")
    query.recentProgress = [batch(0, 1, inputRowsPerSecond=float("nan"), processedRowsPerSecond="Infinity")]
    figures = watch.look(query)
    assert (figures.input_per_second, figures.done_per_second) == (None, None)


def test_lag_is_up_to_the_newest_known_end() -> None:
    done = batch(0, 1, end=100, latest=150)
    assert lag_of(done) == 50
    assert lag_of(done, {"orders": {0: 180}}) == 80
    assert lag_of(done, {"orders": {0: 120}}) == 50
    assert lag_of(done, {"orders": {0: 150, 1: 7}, "others": {0: 99}}) == 57, "a new partition is all lag"
    assert lag_of({"sources": [{"endOffset": '{"orders":{"0":9}}', "latestOffset": None}]}) is None
    assert lag_of({"sources": [{"endOffset": "17", "latestOffset": "20"}]}) is None, "some other source"
    assert lag_of({}) is None


@pytest.mark.parametrize("given", [None, "null", "5", "[]", '{"a": 1}', '{"a": {"x": 1}}', "{", 7])
def test_other_json_has_no_offsets(given: Any) -> None:
    assert read_offsets(given) == {}


def test_a_snapshot_comes_back_from_json() -> None:
    job = JobFigures("a", "archive", "running", 5, figures={"x": 1})
    made = Snapshot("orders", "running", 17, 1000, 2000, (job,), dead_letters={"orders.dlq": 3})
    given = json.loads(json.dumps(made.as_object()))
    given["of_a_later_version"] = given["jobs"][0]["new"] = 1
    assert Snapshot.from_object(given) == made
