"""Runners: threads and tasks."""

from __future__ import annotations

import asyncio
from threading import Event, current_thread

from millpond.client.runners import Tasks, Threads


def test_threads_run_side_by_side() -> None:
    met = [Event(), Event()]

    def work() -> None:
        mine, other = (0, 1) if not met[0].is_set() else (1, 0)
        met[mine].set()
        met[other].wait(60)

    runners = Threads(work)
    runners.start_one()
    assert met[0].wait(60)
    runners.start_one()
    assert met[1].wait(60)
    runners.end(5)


def test_tasks_share_one_thread_and_end_with_it() -> None:
    names: set[str] = set()
    began, cancelled = Event(), Event()
    failures: list[BaseException] = []

    async def work() -> None:
        names.add(current_thread().name)
        if len(names) == 1 and began.is_set():
            return
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    runners = Tasks(work, failures.append)
    runners.start_one()
    assert began.wait(60)
    runners.start_one()
    runners.end(5)
    assert cancelled.is_set()
    assert names == {"millpond-handlers"}
