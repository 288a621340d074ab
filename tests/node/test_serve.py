"""One node as a process: ready, alive through a client's faults, and gone at a signal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header

PROGRAM = """
import sys
from millpond.config.node import node_settings
from millpond.node.journal import LineJournal
from millpond.node.serve import serve
settings = node_settings({"data.folder": sys.argv[1], "listen": "127.0.0.1:0"})
serve(settings, LineJournal(), lambda broker: print(broker.address[1], flush=True))
"""


class Child:
    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Exit code, and all that it wrote to its journal."""
        self.process.send_signal(number)
        _, journal = self.process.communicate(timeout=20)
        return self.process.returncode, journal

    def api_versions(self) -> int:
        """How many APIs it serves, asked over a socket."""
        body = encode_request_header(18, 0, 5, "test") + m.ApiVersionsRequest().encode(0)
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as link:
            link.sendall(len(body).to_bytes(4, "big") + body)
            stream = link.makefile("rb")
            reply = stream.read(int.from_bytes(stream.read(4), "big"))
        correlation_id, position = decode_response_header(reply, 18, 0)
        assert correlation_id == 5
        return len(m.ApiVersionsResponse.decode(reply, 0, position)[0].api_keys)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path / "data")
    yield child
    if child.process.poll() is None:
        child.process.kill()
        child.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(child: Child, number: signal.Signals, tmp_path: Path) -> None:
    assert child.api_versions() > 10
    assert child.stop(number)[0] == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_client_that_breaks_the_protocol_is_told_of_in_the_journal(child: Child) -> None:
    with socket.create_connection(("127.0.0.1", child.port), timeout=10) as link:
        link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert link.recv(100) == b""
    assert child.api_versions() > 10
    code, journal = child.stop(signal.SIGTERM)
    assert code == 0
    assert "the client broke the protocol" in journal
    assert "Traceback" not in journal


def test_a_second_node_on_the_same_folder_is_refused(child: Child, tmp_path: Path) -> None:
    second = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert "another process uses the data folder" in second.stderr
    assert child.api_versions() > 10
