"""The processes of the simulator have limits: what goes beyond one of them ends with a sentence, and does no harm."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from millpond.console import simulator, simulator_process
from millpond.console.cluster_pool import Busy
from millpond.console.guard import Guard, Rules
from millpond.console.login import Login
from millpond.console.shapes import BadRequest
from millpond.console.simulators import LINE_BYTES_MAX, PROCESSES_MAX, PROGRAM, Simulators
from millpond.sim.simulator.lessons.catalogue import LESSONS
from millpond.sim.simulator.recording import encode
from millpond.sim.simulator.simulation import TooMuch
from support.console import until

pytestmark = pytest.mark.boundary

T = TypeVar("T")

GREEDY = (
    sys.executable,
    "-c",
    f"""
import os, sys
from millpond.console import simulator_process

real = simulator_process.SimulatorSession.answer

def answer(self, question):
    match question["ask"]:
        case "pid":
            return {{"pid": os.getpid()}}
        case "memory":
            # Four times as much as it may have, none of it touched: no machine is hurt where it is let.
            held = [bytearray(64 << 20) for _ in range({simulator_process.MEMORY_BYTES_MAX >> 24})]
            return {{"held": len(held)}}
        case "time":
            while True:
                pass
        case "words":
            return {{"words": "x" * {LINE_BYTES_MAX}}}
        case "death":
            os._exit(3)
    return real(self, question)

simulator_process.SimulatorSession.answer = answer
sys.exit(simulator_process.main())
""",
)
"""The real program, with questions that go beyond its limits."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: a browser that is open has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(120)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def pid_of(simulators: Simulators, session: str = "one") -> int:
    return int(json.loads(await simulators.ask(session, {"ask": "pid"}))["pid"])


async def refusal(simulators: Simulators, what: str, seconds: float = 30.0) -> str:
    with pytest.raises(BadRequest) as refused:
        await simulators.ask("one", {"ask": what}, seconds)
    return str(refused.value)


@pytest.mark.parametrize(
    ("what", "seconds", "error"),
    [
        ("memory", 30.0, "needs too much memory"),
        ("time", 1.0, "took more than 1 s"),
        ("words", 30.0, "failed on this run"),
        ("death", 30.0, "failed on this run"),
    ],
)
def test_a_run_that_goes_too_far_ends_and_the_next_one_is_fine(what: str, seconds: float, error: str) -> None:
    async def play() -> tuple[str, int, int]:
        simulators = Simulators(GREEDY)
        try:
            first = await pid_of(simulators)
            sentence = await refusal(simulators, what, seconds)
            return sentence, first, await pid_of(simulators)
        finally:
            simulators.close()

    sentence, first, second = run(play())
    assert error in sentence
    assert first != second
    until(lambda: is_gone(first) and is_gone(second))


def test_requests_beyond_the_limit_are_refused_as_busy() -> None:
    async def play() -> tuple[list[int], int]:
        simulators = Simulators(GREEDY)
        try:
            pids = [await pid_of(simulators, f"page {number}") for number in range(PROCESSES_MAX)]
            busy = [
                asyncio.ensure_future(simulators.ask(f"page {number}", {"ask": "time"}))
                for number in range(PROCESSES_MAX)
            ]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await simulators.ask("one more", {"ask": "pid"})
            with pytest.raises(Busy):
                await simulators.ask("page 0", {"ask": "pid"})
            # Whoever leaves makes room.
            busy[1].cancel()
            await asyncio.wait({busy[1]})
            last = await pid_of(simulators, "one more")
            for each in busy:
                each.cancel()
            await asyncio.wait(busy)
            return pids, last
        finally:
            simulators.close()

    pids, last = run(play())
    assert len(set(pids)) == PROCESSES_MAX
    assert last not in pids
    until(lambda: all(map(is_gone, (*pids, last))))


def test_an_idle_process_is_ended() -> None:
    async def play() -> int:
        simulators = Simulators(GREEDY, idle_seconds=0.1)
        try:
            pid = await pid_of(simulators)
            while not is_gone(pid):
                await asyncio.sleep(0.05)
            return await pid_of(simulators) - pid
        finally:
            simulators.close()

    assert run(play()) != 0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(GREEDY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def test_a_process_whose_console_is_gone_ends_in_its_time(process: subprocess.Popen[bytes]) -> None:
    """It is busy, so that it does not see its standard input end; and nobody is there who could kill it."""
    assert process.stdin is not None
    process.stdin.write(b'{"ask": "time", "seconds": 0.5}\n')
    process.stdin.flush()
    assert process.wait(60) == -signal.SIGALRM


def test_the_real_program_is_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape that takes longer than a question may, in the program that plays them."""
    assert PROGRAM[-1] == simulator_process.__name__
    monkeypatch.setattr(simulator_process, "SECONDS_MAX", 0)
    question = {
        "ask": "look",
        "tape": encode(LESSONS["keys"].tape),
        "at_ms": -1,
        "since_ms": -1,
        "line": 0,
        "steps": False,
        "add": None,
    }
    with pytest.raises(TooMuch):
        simulator_process.SimulatorSession().answer(question)


@pytest.mark.parametrize("has_login", [False, True])
def test_an_abandoned_run_ends(monkeypatch: pytest.MonkeyPatch, has_login: bool) -> None:
    """Somebody asks and closes the page: the process that was busy for it is free. Behind the guard, too."""
    login = Login("a long password") if has_login else None
    token = login.begin("a long password", "127.0.0.1") if login else None
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/api/simulator/look",
        "raw_path": b"/api/simulator/look",
        "query_string": b"session=one",
        "headers": [(b"host", b"localhost:1"), (b"cookie", f"millpond-session-1={token}".encode())],
    }
    statuses: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        statuses.append((await simulator.put(Request(scope, receive), {"ask": "time"})).status_code)

    async def play() -> tuple[int, int]:
        simulators = Simulators(GREEDY)
        monkeypatch.setattr(simulator, "context_of", lambda _: type("Room", (), {"simulators": simulators}))
        messages = iter([{"type": "http.request"}])

        async def receive() -> Message:
            if message := next(messages, None):
                return message
            # The page is closed when its question is under way.
            while not any(each.lock.locked() for each in simulators._benches):
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            raise AssertionError

        try:
            first = await pid_of(simulators)
            await asyncio.wait_for(Guard(app, Counter(), Rules(login=login))(scope, receive, send), 20)
            return first, await pid_of(simulators)
        finally:
            simulators.close()

    first, second = run(play())
    assert (statuses, first != second) == ([simulator.GONE], True)
    until(lambda: is_gone(first))
