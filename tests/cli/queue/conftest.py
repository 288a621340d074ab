"""Members that hold records of a queue."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HOLDER = """
import sys, time
from confluent_kafka import ShareConsumer

settings = {"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "client.id": "holder", "log_level": 0}
consumer = ShareConsumer(settings)
consumer.subscribe([sys.argv[3]])
while not len(list(consumer.poll(1.0))):
    pass
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold(node: Any) -> Iterator[Callable[[str, str], None]]:
    """Starts a member in a process of its own, and returns once it holds records."""
    started: list[subprocess.Popen[bytes]] = []

    def start(group: str, topic: str) -> None:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, node.address, group, topic], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

    yield start
    for process in started:
        process.kill()
        process.communicate()
