"""One process of `millpond work`: runs the workers and reports to the parent."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millpond.client.worker import Worker

STATS: Final = "\x01stats "
"""The prefix of lines on standard error that are for the parent."""

STATS_SECONDS: Final = 1.0


def run_child(workers: Sequence[Worker]) -> None:
    from millpond.client.worker import run_workers

    ended = threading.Event()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reporter = threading.Thread(target=_report, args=(workers, ended), daemon=True)
    reporter.start()
    print("ready", flush=True)
    try:
        run_workers(*workers)
    finally:
        ended.set()
        reporter.join(STATS_SECONDS)


def _report(workers: Sequence[Worker], ended: threading.Event) -> None:
    last_line = ""
    while True:
        is_over = ended.wait(STATS_SECONDS)
        line = json.dumps({str(at): asdict(worker.stats) for at, worker in enumerate(workers)})
        if line != last_line:
            last_line = line
            # One write, so that output of handlers cannot come in between.
            os.write(sys.stderr.fileno(), f"{STATS}{line}\n".encode())
        if is_over:
            return


def _end_with_parent() -> None:
    """The parent holds the other end of standard input and never writes: its end means the parent is gone."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
