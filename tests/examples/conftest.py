"""Examples as a user runs them: programs in separate processes, with a node of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.testing import Pond

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MILLPOND = (sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())")
PATIENCE_SECONDS = 100.0


class Program:
    """A running program and the lines it has printed."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path | None) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._faults: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, kept), daemon=True)
            for stream, kept in ((self._process.stdout, self.lines), (self._process.stderr, self._faults))
        ]
        for each in self._readers:
            each.start()

    @property
    def output(self) -> list[str]:
        """What it printed, and what it wrote to standard error."""
        return [*self.lines, *self._faults]

    def wait_for(self, is_enough: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the lines satisfy the condition, and return them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_enough(list(self.lines)):
            assert time.monotonic() < deadline, f"timed out: {self.lines} {self._faults}"
            assert self._process.poll() is None or is_enough(self._ended()), f"it ended: {self.lines} {self._faults}"
            time.sleep(0.01)
        return list(self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(PATIENCE_SECONDS)
        self._ended()
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def _ended(self) -> list[str]:
        for each in self._readers:
            each.join(PATIENCE_SECONDS)
        return list(self.lines)

    def _read(self, stream: Any, kept: list[str]) -> None:
        with stream:
            kept.extend(map(str.rstrip, stream))


class ExampleRunner:
    """Runs the programs of one example."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self._environment = os.environ | {"MILLPOND_BOOTSTRAP": bootstrap}
        self._started: list[Program] = []

    def run(self, program: str, *arguments: str, code: int = 0) -> list[str]:
        """Run a program to its end and return its lines."""
        return self._run([sys.executable, str(self.folder / program), *arguments], code)

    def millpond(self, *arguments: str) -> list[str]:
        return self._run([*MILLPOND, *arguments], 0)

    def start(self, program: str, *arguments: str) -> Program:
        return self._start([sys.executable, str(self.folder / program), *arguments], None)

    def start_module(self, module: str, *arguments: str) -> Program:
        """`python -m`, in the example's folder."""
        return self._start([sys.executable, "-m", module, *arguments], self.folder)

    def _start(self, command: list[str], folder: Path | None) -> Program:
        self._started.append(Program(command, self._environment, folder))
        return self._started[-1]

    def close(self) -> None:
        for each in self._started:
            each.kill()

    def _run(self, command: list[str], code: int) -> list[str]:
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == code, done.stdout + done.stderr
        return (done.stdout + done.stderr).splitlines() if code else done.stdout.splitlines()


@pytest.fixture
def example(request: pytest.FixtureRequest, millpond: Pond) -> Iterator[ExampleRunner]:
    """The programs of the example that the test file is named after."""
    name = request.path.stem.removeprefix("test_")
    runner = ExampleRunner(EXAMPLES / name, millpond.bootstrap)
    yield runner
    runner.close()
