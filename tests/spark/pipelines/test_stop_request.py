"""StopRequest: the first signal is a wish, the second one an end."""

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


def test_the_second_signal_does_not_wait() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "last words\n"
    assert child.returncode == AT_ONCE


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopping = StopRequest()
    with stopping.listening(lambda: None):
        os.kill(os.getpid(), signal.SIGTERM)
        stopping.wait(60)
        assert stopping.is_asked
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_only_its_owner_can_stop_it() -> None:
    seen = []

    def run() -> None:
        stopping = StopRequest()
        with stopping.listening(lambda: None):
            stopping.ask()
        seen.append(stopping.is_asked)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert seen == [True]
