"""Kafka Connect on a node: a file into a topic exactly once, despite a kill, and the topic into a file.

Skipped if its archives are not available.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.testing.ports import free_port
from support.committed import committed_records
from support.jars import class_path, jars
from support.java_process import JavaProcess
from support.node import Node
from support.patience import with_time

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kafka_connect"
FIRST = 100
IN_ALL = 200


class Worker:
    """A Kafka Connect worker with the settings of the example, except addresses and the plugin folder."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.address = f"127.0.0.1:{free_port()}"
        plugins = folder / "libs"
        plugins.mkdir()
        for jar in jars("connect-file"):
            (plugins / jar.name).symlink_to(jar)
        text = (EXAMPLE / "worker.properties").read_text()
        for old, new in (
            ("127.0.0.1:9092", bootstrap),
            ("127.0.0.1:8083", self.address),
            ("plugin.path=libs", f"plugin.path={plugins}"),
        ):
            assert old in text
            text = text.replace(old, new)
        settings = folder / "worker.properties"
        settings.write_text(text)
        archives = os.pathsep.join([class_path("broker"), class_path("connect")])
        words = ("-cp", archives, "org.apache.kafka.connect.cli.ConnectDistributed", str(settings))
        self.process = JavaProcess(folder / "worker.txt", *words)

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(lambda: self.ask("GET", "connectors") is not None)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The response; None if there is none yet. Connect returns 409 during a rebalance."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.address}/{path}", data, {"content-type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (404, 409, 500, 503):
                pytest.fail(f"{method} {path}: {refusal.code} {refusal.read()!r}")
            return None
        except OSError:
            return None

    def set_up(self, name: str, **changes: str) -> None:
        config = json.loads((EXAMPLE / f"{name}.json").read_text())
        assert changes.keys() <= config.keys()
        self.process.wait_until(lambda: self.ask("PUT", f"connectors/{name}/config", config | changes))

    def is_running(self, name: str) -> bool:
        status = self.ask("GET", f"connectors/{name}/status")
        if status is None:
            return False
        states = [status["connector"]["state"], *(each["state"] for each in status["tasks"])]
        assert "FAILED" not in states, status
        return len(states) > 1 and set(states) == {"RUNNING"}


@pytest.fixture
def worker(make_node: Callable[..., Node], tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path, make_node().bootstrap)
    yield made
    made.process.kill9()


def write_lines(path: Path, numbers: range) -> None:
    with path.open("a") as file:
        file.writelines(f"{number}\n" for number in numbers)


@with_time
def test_each_line_is_in_the_topic_once(worker: Worker, tmp_path: Path) -> None:
    before, after = tmp_path / "in.txt", tmp_path / "out.txt"
    write_lines(before, range(FIRST))
    worker.start()
    worker.set_up("source", file=str(before))
    worker.set_up("sink", file=str(after))
    expected = [str(number) for number in range(IN_ALL)]
    worker.process.wait_until(lambda: after.exists() and after.read_text().split() == expected[:FIRST])
    assert worker.is_running("source")
    assert worker.is_running("sink")

    write_lines(before, range(FIRST, FIRST + 50))
    worker.process.kill9()
    write_lines(before, range(FIRST + 50, IN_ALL))
    worker.start()
    worker.process.wait_until(lambda: worker.is_running("source") and worker.is_running("sink"))
    worker.process.wait_until(lambda: set(after.read_text().split()) == set(expected))
    assert [(value or b"").decode() for _, value in committed_records(worker.bootstrap, "lines")] == expected
    assert worker.process.terminate() in (0, 143)
