"""Calls that may never return."""

from __future__ import annotations

from threading import Event

import pytest

from millpond.client.guarded_calls import CallOverrun, GuardedCalls


def test_results_and_errors_are_passed_on() -> None:
    calls = GuardedCalls()
    assert calls.run(lambda: 7, 60) == 7
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 // 0, 60)
    assert calls.run(lambda: 8, 60) == 8
    calls.close()


def test_a_call_that_hangs_is_given_up() -> None:
    hang = Event()
    calls = GuardedCalls()
    with pytest.raises(CallOverrun, match=r"0\.01 s"):
        calls.run(hang.wait, 0.01)
    hang.set()
