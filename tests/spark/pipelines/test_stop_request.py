"""The first signal requests a stop, the second one exits at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from millpond.spark.pipelines.stop_request import AT_ONCE, StopRequest

CHILD = """
import time
from millpond.spark.pipelines.stop_request import StopRequest
stopping = StopRequest()
with stopping.listening(lambda: print("last words", flush=True)):
    print("ready", flush=True)
    stopping.wait(300)
    print("asked", flush=True)
    time.sleep(300)
"""


def test_the_second_signal_exits_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "last words\n"
    assert child.returncode == AT_ONCE


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopping = StopRequest()
    with stopping.listening(lambda: None):
        os.kill(os.getpid(), signal.SIGTERM)
        stopping.wait(60)
        assert stopping.is_requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_of_the_main_thread_only_its_caller_can_stop_it() -> None:
    seen = []

    def run() -> None:
        stopping = StopRequest()
        with stopping.listening(lambda: None):
            stopping.request()
        seen.append(stopping.is_requested)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert seen == [True]
