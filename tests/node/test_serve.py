"""One node as a process: ready, alive through a client's faults, and gone at a signal."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.config.node import MAX_CONNECTIONS, MAX_PARTITIONS, node_settings
from millpond.node.bugs import EXIT_CODE
from millpond.node.serve import fitted
from millpond.wire import messages as m
from millpond.wire.header import decode_response_header, encode_request_header
from millpond.wire.records import Record, encode_batch

PROGRAM = """
import sys
from millpond.config.node import node_settings
from millpond.node.journal import LineJournal
from millpond.node.serve import serve
settings = node_settings({"data.folder": sys.argv[1], "listen": "127.0.0.1:0"})
serve(settings, LineJournal(), lambda broker: print(broker.address[1], flush=True))
"""

BUGS = {
    "a timer": "broker.clock.call_later(100, lambda: 1 // 0)",
    "a handler": "broker.dispatcher.handle = lambda connection, frame: 1 // 0",
    "a sync round": "import millpond.broker.storage.flusher as flusher; flusher.run_tickets = lambda *_: 1 // 0",
    "a reader of a sync": "broker.controller.observers.on_change(lambda records: 1 // 0)",
}
"""What goes wrong in a node that has just started."""


class Child:
    def __init__(self, folder: Path, bug: str = "pass", settings: dict[str, str] | None = None) -> None:
        program = PROGRAM.replace(
            "serve(settings, LineJournal(), ", f"def sabotage(broker): {bug}\nserve(settings, LineJournal(), "
        )
        program = program.replace("lambda broker: print(", "lambda broker: sabotage(broker) or print(")
        program = program.replace('"127.0.0.1:0"}', f'"127.0.0.1:0", **{settings or {}}}}')
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Exit code, and all that it wrote to its journal."""
        self.process.send_signal(number)
        _, journal = self.process.communicate(timeout=60)
        return self.process.returncode, journal

    def ask(self, *requests: tuple[int, int, bytes]) -> None:
        """Send requests on one connection, and wait until the node answers or hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as link:
            for key, version, body in requests:
                body = encode_request_header(key, version, 5, "test") + body
                link.sendall(len(body).to_bytes(4, "big") + body)
                with contextlib.suppress(OSError):
                    link.recv(1 << 16)

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


def test_who_stops_it_as_soon_as_it_is_ready_gets_a_clean_end(tmp_path: Path) -> None:
    """Signals were not handled between the message that it is ready and the loop: the process died at once."""
    program = PROGRAM.replace("print(broker.address[1], flush=True)", "os.kill(os.getpid(), 15)")
    run = subprocess.run(
        [sys.executable, "-c", "import os" + program, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_client_that_breaks_the_protocol_is_logged(child: Child) -> None:
    with socket.create_connection(("127.0.0.1", child.port), timeout=10) as link:
        link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert link.recv(100) == b""
    assert child.api_versions() > 10
    code, journal = child.stop(signal.SIGTERM)
    assert code == 0
    assert "protocol error" in journal
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
    assert not (tmp_path / "data" / "high-watermark-checkpoint").exists(), "it has no business there"
    assert child.api_versions() > 10


@pytest.mark.parametrize("where", BUGS)
def test_a_bug_ends_the_process_with_its_traceback_and_the_next_start_recovers(tmp_path: Path, where: str) -> None:
    """Half alive is worse: flags stay set, and who waits for them waits for ever."""
    child = Child(tmp_path / "data", BUGS[where])
    topic = m.CreateTopicsRequest.CreatableTopic(
        name="pond", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    batch = encode_batch([Record(0, 1, None, b"v")])
    data = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    produce = m.ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])],
    )
    with contextlib.suppress(OSError):
        child.ask(
            (19, 4, m.CreateTopicsRequest(topics=[topic], timeout_ms=5000).encode(4)), (0, 7, produce.encode(7))
        )
    _, journal = child.process.communicate(timeout=60)
    assert child.process.returncode == EXIT_CODE
    assert "exiting because of a bug in Millpond" in journal
    assert "ZeroDivisionError" in journal
    assert journal.count("Traceback") == 1
    again = Child(tmp_path / "data")
    assert again.api_versions() > 10
    assert again.stop(signal.SIGTERM)[0] == 0


def test_a_bug_costs_no_line_of_the_audit_log(tmp_path: Path) -> None:
    """Whoever has found one would like that best."""
    bug = "broker.clock.call_later(1, lambda: [broker.audit.turned_away('h', 'me') for _ in range(3)] and 1 // 0)"
    child = Child(tmp_path / "data", bug, {"audit.log": "on"})
    child.process.communicate(timeout=60)
    assert child.process.returncode == EXIT_CODE
    (told,) = (tmp_path / "data").rglob("audit.access.jsonl")
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(each["event"], each.get("times_more")) for each in lines] == [("turned_away", None), ("turned_away", 2)]


def test_an_unread_journal_does_not_block_the_node(child: Child) -> None:
    """Standard error is a pipe here, and is read by nobody: probes of another protocol once filled it up."""
    for _ in range(100):
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", child.port), timeout=10) as link:
                link.sendall(b"GET /" + b"x" * 100 + b" HTTP/1.1\r\n\r\n")
        assert child.api_versions() > 10
    assert child.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("descriptors", "partitions", "connections"),
    [(1024, 16_384, 436), (20_000, 100_000, 12_309), (1 << 20, 100_000, 20_000)],
)
def test_limits_fit_what_the_process_may_open(descriptors: int, partitions: int, connections: int) -> None:
    """Limits that are lower than usual but still high need no warning."""
    reports: list[str] = []
    settings = fitted(node_settings({}), descriptors, lambda event, **_: reports.append(event))
    assert (settings[MAX_PARTITIONS], settings[MAX_CONNECTIONS]) == (partitions, connections)
    assert bool(reports) == (descriptors == 1024)
    lower = fitted(node_settings({"max.partitions": "7"}), descriptors, lambda *_, **__: None)
    assert lower[MAX_PARTITIONS] == 7


def test_limits_above_the_descriptor_limit_are_lowered_and_logged() -> None:
    reports: list[dict[str, object]] = []
    settings = node_settings({"max.connections": "15000"})
    assert fitted(settings, 20_000, lambda _, **facts: reports.append(facts))[MAX_CONNECTIONS] == 12_309
    assert reports == [{"descriptors": 20_000, "max_connections": 12_309}]


def test_a_node_that_is_asked_to_end_again_and_again_ends_cleanly(child: Child) -> None:
    assert child.api_versions() > 10
    deadline = time.monotonic() + 60
    while child.process.poll() is None and time.monotonic() < deadline:
        child.process.send_signal(signal.SIGTERM)
        time.sleep(0.0005)
    assert child.process.wait(60) == 0
