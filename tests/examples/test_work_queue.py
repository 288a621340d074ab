"""Workers share the jobs; after one is killed, the others take over its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from millpond.testing import Pond


def done(*workers: Any) -> set[int]:
    return {int(line.split()[-1]) for each in workers for line in list(each.lines)}


def wait(is_done: Callable[[], bool], seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.millpond(settings={"group.min.session.timeout.ms": 500})
def test_workers_share_jobs_and_take_over(millpond: Pond, example: Any) -> None:
    millpond.create_topic("jobs", 8)
    example.run("enqueue.py", "40")
    ann = example.start("job_worker.py", "ann", "0.05")
    ann.wait_for(lambda lines: len(lines) >= 3)
    bob = example.start("job_worker.py", "bob", "0.05")
    cid = example.start("job_worker.py", "cid", "0.05")
    wait(lambda: done(ann, bob, cid) == set(range(40)))
    example.run("enqueue.py", "60", "40")
    wait(lambda: len(bob.lines) >= 5 and len(cid.lines) >= 5)
    assert cid.stop() == 0
    wait(lambda: done(ann, bob, cid) == set(range(100)))
    counts = [len(each.lines) for each in (ann, bob, cid)]
    assert sum(counts) == 100, "nobody was killed: each job is done once"

    example.run("enqueue.py", "30", "100")
    wait(lambda: len(bob.lines) > counts[1] + 2)
    bob.kill()
    wait(lambda: done(ann, bob, cid) == set(range(130)))
    assert sum(len(each.lines) for each in (ann, bob, cid)) <= 130 + 4, "only what bob had in hand is done again"
