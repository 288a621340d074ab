"""Calls that may never return."""

from __future__ import annotations

import subprocess
import sys
import time
from threading import Event

import pytest

from millpond import Timeout
from millpond.client.call_thread import CallOverrun, CallThread


def test_results_and_errors_are_passed_on() -> None:
    calls = CallThread("test")
    assert calls.run(lambda: 7, timeout_s=60) == 7
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 // 0, timeout_s=60)
    assert calls.run(divmod, 7, 2) == (3, 1)
    calls.close()
    with pytest.raises(RuntimeError, match="closed"):
        calls.submit(lambda: 7)


def test_a_call_that_hangs_is_given_up() -> None:
    hang = Event()
    calls = CallThread("test")
    with pytest.raises(CallOverrun, match=r"0\.01 s"):
        calls.run(hang.wait, timeout_s=0.01)
    assert calls.is_abandoned
    with pytest.raises(Timeout):
        calls.run(lambda: 7)
    later = calls.submit(lambda: 8)
    hang.set()
    assert later.result(20) == 8


def test_a_deadline_may_come_while_the_call_runs() -> None:
    deadline: list[float | None] = [None]
    hang = Event()
    calls = CallThread("test", lambda: deadline[0])
    assert calls.run(lambda: 7) == 7
    deadline[0] = time.monotonic()
    with pytest.raises(CallOverrun):
        calls.run(hang.wait)
    hang.set()


def test_a_timeout_that_the_call_raises_is_no_overrun() -> None:
    def fail() -> None:
        raise Timeout("the call timed out")

    calls = CallThread("test")
    with pytest.raises(Timeout, match="the call timed out"):
        calls.run(fail, timeout_s=60)
    assert not calls.is_abandoned
    calls.close()


def test_a_program_ends_while_a_call_hangs() -> None:
    program = """
import time
from millpond.client.call_thread import CallThread
calls = CallThread("test")
calls.submit(time.sleep, 1000)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
