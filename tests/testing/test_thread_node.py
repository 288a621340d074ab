"""A node in this process: it ends in order or as by SIGKILL, and leaves nothing behind in the process."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.own_process import in_own_process

from millpond.log.store import FolderInUse
from millpond.testing.thread_node import ThreadNode

pytestmark = pytest.mark.boundary

QUESTION = bytes.fromhex("0000000a" + "0012" + "0000" + "00000007" + "ffff")
"""ApiVersions, version 0, correlation id 7, no client name."""


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    return {"data.folder": str(tmp_path / "data"), "listen": "127.0.0.1:0"}


def silent(event: str, **facts: object) -> None:
    pass


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_orderly_end_marks_the_folder_and_a_kill_does_not(texts: dict[str, str], tmp_path: Path) -> None:
    node = ThreadNode(texts, silent)
    node.start()
    node.stop()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    node.start()
    node.kill()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert not node.is_running


def test_a_killed_node_refuses_connections_and_breaks_open_ones(texts: dict[str, str]) -> None:
    node = ThreadNode(texts, silent)
    port = node.start()
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        node.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        assert link.recv(1) == b""


@in_own_process
def test_ten_lives_leave_no_threads_and_no_descriptors(texts: dict[str, str]) -> None:
    node = ThreadNode(texts, silent)
    node.start()
    node.kill()
    gc.collect()
    threads, files = threading.active_count(), descriptors()
    for life in range(10):
        node.start()
        if life % 2:
            node.kill()
        else:
            node.stop()
    assert threading.active_count() <= threads
    assert descriptors() <= files


def test_a_node_that_cannot_start_says_why_and_can_try_again(texts: dict[str, str]) -> None:
    first, second = ThreadNode(texts, silent), ThreadNode(texts, silent)
    first.start()
    with pytest.raises(FolderInUse):
        second.start()
    first.stop()
    assert second.start() > 0
    second.kill()


def test_a_paused_node_accepts_connections_but_does_not_answer(texts: dict[str, str]) -> None:
    node = ThreadNode(texts, silent)
    port = node.start()
    node.pause()
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(QUESTION)
        link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            link.recv(4)
        node.resume()
        link.settimeout(5)
        assert len(link.recv(4)) == 4


def test_a_node_killed_while_paused_answers_nothing(texts: dict[str, str]) -> None:
    node = ThreadNode(texts, silent)
    port = node.start()
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(QUESTION)
        length = int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big")
        assert len(link.recv(length, socket.MSG_WAITALL)) == length
        node.pause()
        link.sendall(QUESTION * 3)
        node.kill()
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(1) == b""
    assert not node.is_running


def test_what_it_reports_reaches_the_journal(texts: dict[str, str]) -> None:
    result: list[tuple[str, dict[str, Any]]] = []
    node = ThreadNode(texts, lambda event, **facts: result.append((event, facts)))
    port = node.start()
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert link.recv(1) == b""
    node.kill()
    assert any("protocol error" in event for event, _ in result)


def test_a_bug_ends_the_node_and_stop_raises_it(texts: dict[str, str], tmp_path: Path) -> None:
    """A test that goes on with half a node finds nothing, or the wrong thing."""
    events: list[str] = []
    node = ThreadNode(texts, lambda event, **_: events.append(event))
    port = node.start()
    running = node._running
    assert running is not None
    running.thread.tell(lambda: 1 // 0)
    running.thread.join()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    with pytest.raises(RuntimeError, match="because of a bug") as result:
        node.stop()
    assert isinstance(result.value.__cause__, ZeroDivisionError)
    assert "exiting because of a bug in Millpond, please report it" in events
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    node.start()
    node.stop()
