"""Where questions are answered: long looks do not hold up the others, and too many are told to come later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from starlette.requests import Request

from millpond.admin.dead_letters.topics import LastLetters
from millpond.admin.errors import Refused
from millpond.admin.offsets import Beginning
from millpond.console import letters, records, skew
from millpond.console.cluster_pool import LONG_MAX, LONG_THREADS, READ_SECONDS, Busy, ClusterPool
from millpond.console.jobs import RUNNING_MAX, Job, Jobs
from millpond.console.streams import Event, sample_events
from support.console import until

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def test_long_looks_do_not_hold_up_a_question() -> None:
    async def play() -> None:
        pool, go_on = ClusterPool(NOBODY), threading.Event()
        long = [asyncio.create_task(pool.ask(lambda _: go_on.wait(30), is_long=True)) for _ in range(LONG_MAX)]
        try:
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await pool.ask(lambda _: None, is_long=True)
            assert await asyncio.wait_for(pool.ask(lambda _: "at once"), 10) == "at once"
            assert not any(each.done() for each in long[:LONG_THREADS])
        finally:
            go_on.set()
            assert await asyncio.gather(*long) == [True] * LONG_MAX
            pool.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("query", "is_long", "seconds"),
    [("", False, READ_SECONDS), ("error=ValueError", True, 15.0), ("before=5:0:3", True, 15.0)],
)
def test_looks_through_many_letters_are_long_ones(
    monkeypatch: pytest.MonkeyPatch, query: str, is_long: bool, seconds: float
) -> None:
    """The last of all are soon found; those that somebody picks, and older ones, may be anywhere."""
    results: list[object] = []

    async def ask(look: Callable[[object], bytes], is_long: bool) -> bytes:
        results.append(is_long)
        return look(None)

    def last_letters(*_: object, seconds: float, **__: object) -> LastLetters[object]:
        results.append(seconds)
        return LastLetters(UUID(int=1), [], (), 0, 0, True, is_held_back=False)

    monkeypatch.setattr(letters, "last_letters", last_letters)
    monkeypatch.setattr(letters, "context_of", lambda _: SimpleNamespace(pool=SimpleNamespace(ask=ask)))
    scope = {"type": "http", "path_params": {"topic": "t.dlq"}, "query_string": query.encode(), "headers": []}
    asyncio.run(letters.letters(Request(scope)))
    assert results == [is_long, seconds]


class Full:
    """Every slot of the pool is taken."""

    async def ask(self, *_: object, **__: object) -> None:
        raise Busy

    on = ask

    def lease(self) -> None:
        pass

    def give_back(self, lease: object) -> None:
        pass


VIEWS: dict[str, Callable[[Any], AsyncIterator[Event]]] = {
    "tail": lambda context: records._tail(context, SimpleNamespace(read_new=None)),
    "search": lambda context: records._search(context, "t", None, Beginning(), "text", "read_uncommitted"),
    "skew": lambda context: skew._steps(context, "t", None, 100),
    "look": lambda context: sample_events(context.pool.ask),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_live_view_that_finds_no_place_says_so(view: str) -> None:
    event = asyncio.run(anext(VIEWS[view](SimpleNamespace(pool=Full()))))
    assert (event.name, "is busy" in event.data["error"]) == ("failure", True)


def test_a_dry_run_ends_without_a_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page was closed: it would read every letter, and keep its place, for nobody."""
    monkeypatch.setattr("millpond.console.jobs.UNSEEN_SECONDS", 0.5)
    jobs, ends = Jobs(), threading.Event()

    def work(job: Job) -> None:
        while not ends.wait(0.01):
            job.check()

    try:
        unseen = jobs.start("counts", "unseen", work, is_only_shown=True)
        seen = jobs.start("counts", "seen", work, is_only_shown=True)
        change = jobs.start("letters", "change", work)
        until(lambda: jobs.get(seen.id) and unseen.state == "stopped")
        assert (seen.state, change.state) == ("running", "running")
    finally:
        ends.set()


def test_tasks_of_one_kind_leave_room_for_those_of_others() -> None:
    jobs, go_on = Jobs(), threading.Event()

    def work(job: Job) -> None:
        go_on.wait(30)
        job.plan = [job.what]

    try:
        started = [jobs.start("counts", str(number), work) for number in range(RUNNING_MAX)]
        with pytest.raises(Refused, match="wait for one"):
            jobs.start("counts", "one more", work)
        jobs.start("letters", "another", work)
        with pytest.raises(Refused, match="Nothing was changed"):
            jobs.agreed(started[0].id, list)
    finally:
        go_on.set()
    until(lambda: started[0].state == "done")
    assert jobs.agreed(started[0].id, list) == ["0"]
    with pytest.raises(Refused, match="repeat it"):
        jobs.agreed(started[0].id, dict)
