"""A program from Kafka's ecosystem as a child process, from published archives: its output goes into a file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from support.jars import java_command

# Little memory, and a quick start rather than fast code.
OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
STOP_SECONDS_MAX = 30.0
PATIENCE_SECONDS = 150.0


class JavaProcess:
    """Runs the same command line repeatedly; `said` is the output of all runs."""

    def __init__(self, log: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._words = [java_command(), *OPTIONS, *words]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None, "already running"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; fails with the program's last output if it has exited or takes too long."""
        assert self._process is not None, "not running"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            code = self._process.poll()
            assert code is None, f"it ended with {code}: {self.said[-3000:]}"
            assert time.monotonic() < deadline, f"in vain: {self.said[-3000:]}"
            time.sleep(0.05)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
