"""A real node as a child process with its own data folder: start it, stop it, kill it, restart it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from millpond.testing.ports import HOST, free_port
from support.fork_server import ForkedProcess, fork_server

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
PATIENCE_SECONDS = 60.0
"""Only for what never happens: a passing test does not depend on it, however busy the machine is."""

STARTER = """
import ctypes, os, resource, signal, sys
if "DESCRIPTORS" in os.environ:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["DESCRIPTORS"]),) * 2)
try:
    # A node must not outlive the tests that started it, however they end.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (OSError, AttributeError):
    pass
from millpond.config.node import node_settings
from millpond.node.journal import LineJournal
from millpond.node.serve import serve
texts = dict(each.split("=", 1) for each in sys.argv[1:])
serve(node_settings(texts), LineJournal(), lambda broker: print("ready", flush=True))
"""


class NodeEnded(Exception):
    """The process exited before it was ready."""


class Node:
    """One node. `settings` apply from the next start on; the port stays the same through restarts."""

    def __init__(
        self, root: Path, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data = root / "data"
        self.journal_path = root / "journal.txt"
        self.settings = dict(settings or {})
        self.environment = dict(environment or {})
        self.port = 0
        self.starts = 0
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        root.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Node:
        """Start and wait until it serves."""
        self.spawn()
        process = self._process
        assert process is not None
        assert process.stdout is not None
        # Not `select`: a test may hold more descriptors than it supports.
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        readable = waiting.poll(START_SECONDS_MAX * 1000)
        if not readable or process.stdout.readline() != b"ready\n":
            code = process.poll()
            self.kill9()
            raise NodeEnded(f"the node was not ready (exit code {code}): {self.journal()[-2000:]}")
        self.starts += 1
        return self

    def spawn(self) -> None:
        """Start the process without waiting."""
        assert self._process is None, "already running"
        self.port = self.port or free_port()
        texts = {"data.folder": str(self.data), "listen": self.bootstrap, **self.settings}
        arguments = [f"{name}={text}" for name, text in texts.items()]
        with self.journal_path.open("ab") as journal:
            if not self.environment:
                self._process = fork_server().start(arguments, os.environ, journal)
                return
            # Its modules may read a variable on import, and a library may be preloaded.
            self._process = subprocess.Popen(
                [sys.executable, "-c", STARTER, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=journal,
                env={**os.environ, **self.environment},
            )

    def kill9(self) -> None:
        """Kill it, as a crash of the process would: nothing is flushed, closed or logged."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to shut down, as an operator would; returns its exit code."""
        return self._end(signal.SIGTERM)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def restart(self, *, crash: bool = False) -> Node:
        if crash:
            self.kill9()
        else:
            self.terminate()
        return self.start()

    def journal(self) -> str:
        """Its log so far, over all starts."""
        return self.journal_path.read_text(errors="replace") if self.journal_path.exists() else ""

    def wait_for_word(self, word: str) -> str:
        """The whole log, once `word` is in it: a thread of the node writes it, a moment later."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while word not in (journal := self.journal()):
            assert time.monotonic() < deadline, f"the node did not say {word!r}: {journal[-2000:]}"
            time.sleep(0.01)
        return journal

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

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
            assert process.stdout is not None
            process.stdout.close()


def eventually(condition, seconds: float = PATIENCE_SECONDS, step: float = 0.01):  # type: ignore[no-untyped-def]
    """What `condition` returns once it is true; the last value if that takes too long."""
    deadline = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(step)
    return result
