"""Asking a loop on another thread."""

from __future__ import annotations

import threading

import pytest

from millpond.testing.loop_thread import LoopThread


def test_calls_run_on_the_loop_thread_and_return() -> None:
    thread = LoopThread("one")
    assert thread.call(lambda: threading.current_thread().name) == "one"
    with pytest.raises(KeyError, match="gone"):
        thread.call(lambda: {}["gone"])
    thread.stop()
    assert thread.loop.is_closed()
    assert "one" not in {each.name for each in threading.enumerate()}
