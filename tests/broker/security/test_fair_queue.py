"""A bounded number of jobs run at once, and addresses take turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.base.later import Later
from millpond.broker.security.fair_queue import FairQueue


class Workers:
    def __init__(self) -> None:
        self.begun: list[tuple[Callable[[], Any], Later[Any]]] = []

    def run(self, job: Callable[[], Any]) -> Later[Any]:
        later: Later[Any] = Later()
        self.begun.append((job, later))
        return later

    def end_one(self) -> None:
        job, later = self.begun.pop(0)
        later.finish(job())


def test_an_address_with_many_jobs_delays_only_itself() -> None:
    workers, done = Workers(), []
    queue = FairQueue(workers, at_once_max=2)
    for number in range(50):
        queue.run("10.0.0.1", lambda number=number: f"many-{number}").then(done.append)
    queue.run("10.0.0.2", lambda: "one").then(done.append)
    assert (len(workers.begun), len(queue)) == (2, 49)
    for _ in range(4):
        workers.end_one()
    assert "one" in done
    assert len(workers.begun) == 2
    while workers.begun:
        workers.end_one()
    assert len(done) == 51
    assert len(queue) == 0


def test_abandoned_jobs_are_not_run() -> None:
    workers, done = Workers(), []
    queue = FairQueue(workers, at_once_max=1)
    queue.run("a", lambda: 1).then(done.append)
    gone = queue.run("a", lambda: 2)
    queue.run("a", lambda: 3).then(done.append)
    gone.cancel()
    workers.end_one()
    workers.end_one()
    assert done == [1, 3]
    assert not workers.begun


def test_a_job_that_fails_leaves_room_for_the_next() -> None:
    workers, done, failures = Workers(), [], []
    queue = FairQueue(workers, at_once_max=1)
    queue.run("a", lambda: 1).then(done.append, failures.append)
    queue.run("b", lambda: 2).then(done.append)
    _, first = workers.begun.pop(0)
    first.fail(OSError("no"))
    workers.end_one()
    assert (done, len(failures)) == ([2], 1)
