"""A node as a child process: it can be killed and stopped by signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from millpond.base.interpreter import PYTHON
from millpond.broker.loop.journal import Journal

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0


class NodeEnded(Exception):
    """The process ended or timed out before it was ready."""


class ProcessNode:
    """One node, restartable. `texts` are its settings; `journal` receives its log lines."""

    def __init__(self, texts: Mapping[str, str], journal: Journal) -> None:
        self.texts = texts
        self.source: Path | None = None
        """A folder with another version of the package, used from the next start on."""
        self._journal = journal
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: threading.Thread | None = None
        self._last_line = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node does not run"
        return self._process.pid

    def start(self) -> int:
        """Start, wait until it serves, and return its port."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Start without waiting, for nodes that depend on each other."""
        assert not self.is_running, "the node runs already"
        self._end(signal.SIGKILL)
        process = subprocess.Popen(
            [
                *PYTHON,
                "-m",
                "millpond.testing.child",
                *(f"{name}={text}" for name, text in self.texts.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if self.source is None else {**os.environ, "PYTHONPATH": str(self.source)},
        )
        self._process = process
        assert process.stderr is not None
        self._listening = threading.Thread(target=self._listen, args=(process.stderr,), daemon=True)
        self._listening.start()

    def wait_until_ready(self) -> int:
        """Wait until it serves and return its port."""
        assert self._process is not None, "the node does not run"
        process = self._process
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_SECONDS_MAX)
        word, _, port = (process.stdout.readline() if readable else b"").partition(b" ")
        if word != b"ready":
            self._end(signal.SIGKILL)
            raise NodeEnded(f"the node did not become ready: {self._last_line or 'it said nothing'}")
        return int(port)

    def stop(self) -> None:
        """Shut down cleanly: it answers pending requests and closes its logs."""
        self.resume()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it like a crash: nothing is flushed, closed or answered."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay open, requests go unanswered."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            # It freezes some time after the signal; if it has ended there is nothing to wait for.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
            if self._listening is not None:
                self._listening.join()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _listen(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            self._last_line = line.decode(errors="replace").rstrip()
            self._journal(self._last_line)
