"""Modules planted in the current directory are never imported, by the command or by any process that it starts."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil
import pytest

from millpond.sim.simulator.actions import CreateTopic
from millpond.sim.simulator.recording import encode, recording_of
from millpond.spark.pipelines.worker_python import launcher
from support.node import eventually

SOURCE = Path(__file__).resolve().parents[2] / "src" / "millpond"
COMMAND = (sys.executable, "-P", "-c", "import sys; from millpond.cli import main; sys.exit(main())")
"""As the installed script runs it, whose own folder is first on the path."""

PLANTED = """
import os
with open(os.path.join(os.path.dirname(__file__), "hijacked"), "a") as file:
    file.write(__name__ + "\\n")
raise ImportError("planted")
"""

STARTS_PYTHON_ITSELF = {"base/interpreter.py", "spark/pipelines/worker_python.py"}
"""The only files that may name the interpreter. Test nodes run in a developer's own project."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory where another user has planted modules."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in ("uvicorn", "starlette", "click", "millpond", "confluent_kafka"):
        (folder / f"{name}.py").write_text(PLANTED)
    return folder


@pytest.fixture
def start(shared: Path, lonely: Any) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        processes.append(
            subprocess.Popen(
                [*COMMAND, *arguments],
                stdout=subprocess.PIPE,
                env=lonely.environment | environment,
                cwd=shared,
                text=True,
            )
        )
        return processes[-1]

    yield run
    for each in processes:
        each.send_signal(signal.SIGTERM)
        try:
            each.communicate(timeout=60)
        finally:
            each.kill()


def read_until(process: subprocess.Popen[str], expected: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if expected in line:
            return line
    raise AssertionError(f"the process ended before it printed {expected!r}")


def assert_not_hijacked(folder: Path) -> None:
    assert not (folder / "hijacked").exists(), (folder / "hijacked").read_text()


def look_at_simulator(console: str) -> None:
    query = urlencode({"session": "test", "tape": encode(recording_of((CreateTopic(partitions=1), 300)))})
    with urlopen(f"{console}/api/simulator/look?{query}", timeout=60) as answer:
        assert answer.status == 200


def test_cores_console_simulator_and_spare(start: Start, shared: Path, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    process = start("up", "--cores", "2", *data, "--console", "127.0.0.1:0")
    console = read_until(process, "http://").split()[1]
    read_until(process, "stop")
    look_at_simulator(console)

    def has_spare() -> bool:
        lines = [each.cmdline() for each in psutil.Process(process.pid).children()]
        return any("millpond.cli.cluster.spare" in word for line in lines for word in line)

    assert eventually(has_spare)
    # The spare process, which has imported all of a node, takes over from a killed core.
    pid = int((tmp_path / "data" / "cores" / "2" / ".lock").read_text())
    psutil.Process(pid).kill()
    assert eventually(lambda: (tmp_path / "data" / "cores" / "2" / ".lock").read_text() not in ("", str(pid)))
    assert_not_hijacked(shared)


def test_cluster_up(start: Start, shared: Path, tmp_path: Path) -> None:
    process = start("cluster", "up", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    read_until(process, "bootstrap")
    assert_not_hijacked(shared)


def test_console_in_the_foreground(start: Start, shared: Path, node: Any) -> None:
    process = start("console", "--bootstrap", node.address, "--listen", "127.0.0.1:0")
    look_at_simulator("http://" + read_until(process, "http://").partition("http://")[2].split()[0])
    assert_not_hijacked(shared)


def test_worker_processes(start: Start, shared: Path, node: Any, topic: str) -> None:
    (shared / "billing.py").write_text(
        "from millpond.client.worker import worker\n"
        f"@worker({topic!r}, group={topic!r})\ndef charge(message): print(message)\n"
    )
    # What the program in this directory imports is its own business; the command has its packages by then.
    (shared / "confluent_kafka.py").unlink()
    process = start("work", "billing", "--processes", "2", MILLPOND_BOOTSTRAP=node.address)
    ready = {read_until(process, "ready").split()[1] for _ in range(2)}
    assert ready == {"1:", "2:"}
    assert_not_hijacked(shared)


def test_spark_workers(shared: Path, tmp_path: Path) -> None:
    python = launcher(tmp_path / "state")
    ran = subprocess.run([python, "-m", "click"], cwd=shared, capture_output=True, text=True)
    assert "planted" not in ran.stderr
    assert_not_hijacked(shared)


def test_only_one_file_says_how_python_is_started() -> None:
    """A child started in any other way would have the current directory on its path."""
    files = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "executable" in (text := path.read_text())
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Attribute)
        and each.attr == "executable"
        and isinstance(each.value, ast.Name)
        and each.value.id == "sys"
    }
    # `os.execve` needs the path of the program beside its arguments.
    assert files - {"cli/console.py"} == STARTS_PYTHON_ITSELF
