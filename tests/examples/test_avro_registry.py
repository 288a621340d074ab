"""Karapace on a node as a schema registry: Avro records, and schemas that survive a crash of the registry.

Karapace is not on a package index. The variable KARAPACE has the command that starts it (default: `karapace`), and
its own variables configure it. Without one the test is skipped.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.testing import Pond
from millpond.testing.ports import free_port
from support.patience import with_time

SUBJECT = "registry.orders-value"
START_SECONDS_MAX = 100.0
FIRST = {"type": "record", "name": "First", "fields": [{"name": "id", "type": "string"}]}


class Registry:
    def __init__(self, words: list[str], bootstrap: str, folder: Path) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self._words = words
        self._log = folder / "registry.txt"
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "bootstrap_uri": bootstrap,
            "host": "127.0.0.1",
            "advertised_hostname": "127.0.0.1",
            "port": str(port),
            "registry": "true",
            "karapace_registry": "true",
            "rest": "false",
            "waiting_time_before_acting_as_master_ms": "500",
            "log_level": "INFO",
        }
        self._environment = os.environ | {f"KARAPACE_{name.upper()}": text for name, text in settings.items()}

    def start(self) -> None:
        """Wait until it accepts schemas: first it reads its topic, and elects a leader in its group."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.ask("subjects/first-value/versions", {"schema": json.dumps(FIRST)})[0] != 200:
            output = self._log.read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, f"it ended: {output}"
            assert time.monotonic() < deadline, f"it takes no schema: {output}"
            time.sleep(0.1)

    def kill9(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the body; 0 without a response."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/vnd.schemaregistry.v1+json"}
        try:
            request = urllib.request.Request(f"{self.address}/{path}", data, headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()
        except OSError:
            return 0, None


@pytest.fixture
def registry(millpond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    words = shlex.split(os.environ.get("KARAPACE", "karapace"))
    if shutil.which(words[0]) is None:
        pytest.skip("there is no Karapace here: no package index has it; KARAPACE says how to start one")
    for package in ("authlib", "httpx"):
        pytest.importorskip(package, reason="pip install 'confluent-kafka[avro,schemaregistry]'")
    made = Registry(words, millpond.bootstrap, tmp_path)
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", made.address)
    try:
        made.start()
        yield made
    finally:
        made.kill9()


@with_time
def test_avro_through_a_registry(registry: Registry, millpond: Pond, example: Any) -> None:
    millpond.create_topic("registry.orders")
    millpond.create_topic("registry.orders.dlq")
    assert example.run("registry_orders.py", "send", "3") == ["3 orders are sent"]
    assert SUBJECT in registry.ask("subjects")[1]
    value = millpond.consume("registry.orders", 1)[0].value
    number = int.from_bytes(value[1:5])
    assert (value[0], json.loads(registry.ask(f"schemas/ids/{number}")[1]["schema"])["name"]) == (0, "Order")
    # An incompatible schema is refused.
    other = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    assert registry.ask(f"subjects/{SUBJECT}/versions", {"schema": json.dumps(other)})[0] == 409

    registry.kill9()
    millpond.restart()
    registry.start()
    assert json.loads(registry.ask(f"schemas/ids/{number}")[1]["schema"])["name"] == "Order"
    millpond.produce("registry.orders", b"\xff")
    assert example.run("registry_orders.py", "charge") == [
        "ann pays 0.00 for o-0",
        "ann pays 1.50 for o-1",
        "ann pays 3.00 for o-2",
    ]
    assert millpond.consume("registry.orders.dlq", 1)[0].value == b"\xff"
