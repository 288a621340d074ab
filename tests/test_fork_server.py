"""Nodes that are forked from a preloaded process are processes like any other: they are killed, and die, alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.fork_server import fork_server
from support.node import Node, NodeEnded, eventually

pytestmark = [pytest.mark.boundary, pytest.mark.smoke]


def test_a_node_is_a_process_of_its_own_and_its_end_is_known(make_node: Callable[..., Node]) -> None:
    first, second = make_node(), make_node()
    assert len({os.getpid(), first.pid, second.pid}) == 3
    os.kill(first.pid, signal.SIGKILL)
    assert eventually(lambda: not first.is_running())
    assert first._end(signal.SIGTERM) == -signal.SIGKILL
    assert second.is_running()
    assert second.terminate() == 0


def test_a_node_that_cannot_start_says_why(make_node: Callable[..., Node]) -> None:
    with pytest.raises(NodeEnded, match=r"unknown node setting no\.such\.setting"):
        make_node({"no.such.setting": "1"})


def test_a_stopped_node_is_killed_as_well(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.signal(signal.SIGSTOP)
    pid = node.pid
    node.kill9()
    assert not psutil.pid_exists(pid)


def test_a_variable_that_modules_read_makes_another_server_and_nodes_of_the_first_go_on(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, node = fork_server(), make_node()
    assert fork_server() is before
    monkeypatch.setenv("MILLPOND_PLAIN", "1")
    assert fork_server() is not before
    del before
    assert make_node().terminate() == 0
    assert node.is_running()
    assert node.terminate() == 0


def test_nodes_end_with_the_tests_that_started_them(tmp_path: Path) -> None:
    """However those end."""
    program = (
        "import sys, time; from pathlib import Path; from support.node import Node;"
        "print(Node(Path(sys.argv[1])).start().pid, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert psutil.pid_exists(pid)
        tests.kill()
    assert eventually(lambda: not psutil.pid_exists(pid))
