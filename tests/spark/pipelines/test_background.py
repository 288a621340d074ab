"""Background work has the interface of a query."""

from __future__ import annotations

import threading

from millpond.spark.pipelines.background import Background
from millpond.spark.pipelines.progress import JobWatch


def test_rows_are_reported_and_added_up() -> None:
    go = threading.Event()

    def work(report: Background) -> None:
        for _ in range(4):
            report.add_rows(25)
        go.wait(60)
        report.add_rows(11)

    query, watch = Background("replay", work), JobWatch("replay", "replay")
    assert query.isActive
    assert watch.look(query).state in ("starting", "running")
    go.set()
    query._thread.join(60)
    figures = watch.look(query)
    assert (figures.rows_in, figures.rows_out, figures.state) == (111, 111, "finished")
    assert (figures.input_per_second or 0) > 0
    assert query.exception() is None


def test_a_failure_is_the_querys_exception() -> None:
    def work(report: Background) -> None:
        raise ValueError("no such table")

    query = Background("replay", work)
    query._thread.join(60)
    assert not query.isActive
    assert str(query.exception()) == "no such table"
    assert JobWatch("replay", "replay").look(query).state == "failed"


def test_it_stops_on_request() -> None:
    rounds = []

    def work(report: Background) -> None:
        while not report.is_stopping:
            rounds.append(1)
            threading.Event().wait(0.01)

    query = Background("replay", work)
    query.stop()
    assert not query.isActive
    assert query.exception() is None
