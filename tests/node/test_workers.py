"""Jobs run on other threads; exactly one answer comes back, on the loop's."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from millpond.node.workers import ThreadWorkers


def run_a_while(loop: asyncio.AbstractEventLoop, condition, seconds: float = 60) -> None:
    async def wait() -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "nothing came back"
            await asyncio.sleep(0.001)

    loop.run_until_complete(wait())


def test_answers_come_back_on_the_loops_thread(loop: asyncio.AbstractEventLoop) -> None:
    workers = ThreadWorkers(loop)
    replies: list[tuple[object, int]] = []
    workers.run(threading.get_ident).then(lambda value: replies.append((value, threading.get_ident())))
    assert replies == []
    run_a_while(loop, lambda: replies)
    job_thread, answer_thread = replies[0]
    assert answer_thread == threading.get_ident() != job_thread
    workers.close()


def test_a_failure_is_reported_as_such(loop: asyncio.AbstractEventLoop) -> None:
    workers = ThreadWorkers(loop)
    replies: list[Exception] = []
    workers.run(lambda: os.stat("/does/not/exist")).then(pytest.fail, replies.append)
    run_a_while(loop, lambda: replies)
    assert isinstance(replies[0], FileNotFoundError)
    workers.close()


def test_what_an_answer_raises_reaches_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    workers = ThreadWorkers(loop)
    replies: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: replies.append(context["exception"]))
    failed: list[Exception] = []
    workers.run(lambda: 1).then(lambda value: 1 // (value - 1), failed.append)
    run_a_while(loop, lambda: replies)
    assert [type(error) for error in replies] == [ZeroDivisionError]
    assert failed == []
    workers.close()


def test_a_job_that_ends_the_process_is_not_kept_in_a_drawer(loop: asyncio.AbstractEventLoop) -> None:
    workers = ThreadWorkers(loop)

    def leave() -> None:
        raise SystemExit(3)

    workers.run(leave).then(pytest.fail, pytest.fail)
    with pytest.raises(SystemExit):
        run_a_while(loop, lambda: False)
    workers.close()


def test_closing_waits_for_jobs_and_their_answers_still_come(loop: asyncio.AbstractEventLoop) -> None:
    workers = ThreadWorkers(loop, threads=2)
    replies: list[int] = []
    ended: list[int] = []

    def job() -> None:
        time.sleep(0.01)
        ended.append(1)

    for _ in range(6):
        workers.run(job).then(lambda _: replies.append(1))
    workers.close()
    assert len(ended) == 6
    run_a_while(loop, lambda: len(replies) == 6)
    with pytest.raises(RuntimeError):
        workers.run(lambda: 1)


def test_a_closed_loop_is_not_an_error_for_the_last_job() -> None:
    loop = asyncio.new_event_loop()
    workers = ThreadWorkers(loop)
    started, go_on = threading.Event(), threading.Event()
    workers.run(lambda: (started.set(), go_on.wait())).then(pytest.fail, pytest.fail)
    started.wait()
    loop.close()
    go_on.set()
    workers.close()
