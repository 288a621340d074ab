"""A node in a separate process with a temporary folder, and its costs as the operating system reports them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import psutil  # type: ignore[import-untyped]

from bench.raw import RawClient, api_versions_frame

HOST = "127.0.0.1"
LINUX: bool = sys.platform.startswith("linux")
PORTS = (10_000, 30_000)
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0

SERVE = """
import sys
from millpond.config.node import node_settings
from millpond.node.journal import LineJournal
from millpond.node.serve import serve
texts = dict(each.split("=", 1) for each in sys.argv[1:])
serve(node_settings(texts), LineJournal(), lambda broker: None)
"""
"""Runs a node if the command line is not installed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The time from exec to the first response."""

    seconds: float
    cpu_seconds: float


def prepare_environment() -> None:
    """Let clients be started as `-m bench.load`, and let nodes write bytecode, like an installed one: otherwise every
    start would include compiling all modules."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def free_port() -> int:
    """A free port below the range of ephemeral ports.

    A client that connects to a port of that range before anyone listens there may get the same port as its own, and
    so connect to itself.
    """
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def cpu_seconds_of(pid: int) -> float:
    """User and system time of all threads of a process since it started."""
    if LINUX:
        # The kernel's CPU clock of that process has nanoseconds; /proc has ticks of ten milliseconds.
        return time.clock_gettime((~pid << 3) | 2)
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def command(folder: str, port: int, settings: Mapping[str, str]) -> list[str]:
    script = os.path.join(os.path.dirname(sys.executable), "millpond")
    if os.path.exists(script) and importlib.util.find_spec("millpond.cli") is not None:
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        quiet = [] if "metrics.listener" in settings else ["--metrics", "off"]
        return [script, "up", "--no-console", *quiet, "--data", folder, "--listen", f"{HOST}:{port}", *sets]
    texts = {"data.folder": folder, "listen": f"{HOST}:{port}", **settings}
    return [sys.executable, "-c", SERVE, *(f"{name}={value}" for name, value in texts.items())]


class Node:
    """Starts on entering, is stopped and wiped on leaving."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, port: int = 0, authority: str = "", user: str = ""
    ) -> None:
        """`authority` is the CA that its clients trust, if it has TLS; `user` is its administrator, if it has
        authentication."""
        self.settings = dict(settings or {})
        self._user = user
        self._authority = authority
        self._root = tempfile.mkdtemp(prefix="millpond-bench-")
        self._own_port = port
        self.port = port
        self.ready = Ready(0.0, 0.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._facts: psutil.Process | None = None

    def __enter__(self) -> Node:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def words(self, folder: str) -> list[str]:
        """The command that runs it."""
        return command(folder, self.port, self.settings)

    def launched(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Its process."""
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> Ready:
        """Start and wait for the first answer."""
        self.port = self._own_port or free_port()
        with open(self.log_path, "ab") as log:
            began = time.perf_counter()
            self._process = self.launched(self.words(self.folder), log)
        self._facts = psutil.Process(self._process.pid)
        self._await_answer(began)
        self.ready = Ready(time.perf_counter() - began, self.cpu_seconds())
        return self.ready

    @property
    def folder(self) -> str:
        """Its data folder."""
        return os.path.join(self._root, "data")

    @property
    def log_path(self) -> str:
        return os.path.join(self._root, "node.log")

    def _await_answer(self, began: float) -> None:
        assert self._process is not None
        while time.perf_counter() - began < START_SECONDS_MAX:
            if self._process.poll() is not None:
                raise RuntimeError(f"the node ended at once: {self.last_words()}")
            try:
                with RawClient(HOST, self.port, START_SECONDS_MAX, self._authority) as client:
                    client.send(api_versions_frame())
                    client.skip()
                return
            except OSError:
                time.sleep(0.002)
        raise TimeoutError(f"the node does not answer: {self.last_words()}")

    def last_words(self) -> str:
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()[-2000:]

    def connect(self) -> RawClient:
        return RawClient(HOST, self.port, authority=self._authority, user=self._user)

    def create_topic(self, topic: str) -> int:
        with self.connect() as client:
            return client.create_topic(topic)

    def cpu_seconds(self) -> float:
        """User and system time of all its threads since it started."""
        return cpu_seconds_of(self.pid)

    def resident_bytes(self) -> int:
        assert self._facts is not None
        return int(self._facts.memory_info().rss)

    def stop(self) -> None:
        """Stop it cleanly, and wait."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """Kill it, like a crash."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Suspend it until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Kill it and delete its data."""
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)
