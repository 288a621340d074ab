"""A node as a child: signals reach it, its words reach the journal, and it does not outlive its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from millpond.testing.process_node import NodeEnded, ProcessNode

pytestmark = pytest.mark.boundary


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    return {"data.folder": str(tmp_path / "data"), "listen": "127.0.0.1:0"}


def silent(event: str, **facts: object) -> None:
    pass


@pytest.mark.smoke
def test_a_node_starts_pauses_stops_and_dies(texts: dict[str, str], tmp_path: Path) -> None:
    node = ProcessNode(texts, silent)
    port = node.start()
    socket.create_connection(("127.0.0.1", port), 5).close()
    node.pause()
    assert psutil.Process(node.pid).status() == psutil.STATUS_STOPPED
    node.resume()
    assert psutil.Process(node.pid).status() != psutil.STATUS_STOPPED
    node.pause()
    node.stop()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    node.start()
    pid = node.pid
    node.pause()
    node.kill()
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_node_that_exited_is_noticed_and_can_restart(texts: dict[str, str]) -> None:
    node = ProcessNode(texts, silent)
    node.start()
    os.kill(node.pid, signal.SIGKILL)
    psutil.Process(node.pid).wait(60)
    assert not node.is_running
    node.pause()
    node.resume()
    assert node.start() > 0
    node.kill()


def test_a_node_that_cannot_start_says_why(texts: dict[str, str]) -> None:
    result: list[str] = []
    node = ProcessNode(texts | {"listen": "127.0.0.1:nowhere"}, lambda event, **_: result.append(event))
    with pytest.raises(NodeEnded, match="nowhere"):
        node.start()
    assert not node.is_running
    assert result


def test_it_ends_when_its_parent_is_killed(texts: dict[str, str]) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from millpond.testing.process_node import ProcessNode\n"
            "node = ProcessNode(dict(each.split('=') for each in sys.argv[1:]), lambda *_, **__: None)\n"
            "node.start(); print(node.pid, flush=True); time.sleep(60)",
            *(f"{name}={text}" for name, text in texts.items()),
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
