"""A worker with an instance id is killed and started again, in a group of the consumer protocol (KIP-848)."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.conftest import Cluster
from millpond import ConfigError, Consumer, Fenced, Message, Worker
from millpond.client import consumer as consumer_module
from support.node import Node, eventually

SESSION_S = 6.0

PROGRAM = """
import sys
from millpond import Message, Worker
def handle(message: Message) -> None:
    print("ran", flush=True)
Worker(handle, "in", group="g", protocol="consumer", instance="one").run(sys.argv[1])
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Cluster]:
    node = Node(
        tmp_path,
        {
            "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.heartbeat.interval.ms": "500",
        },
    ).start()
    cluster = Cluster("millpond", node.bootstrap)
    cluster.create("in", 1)
    yield cluster
    node.kill9()


def test_a_killed_worker_continues_when_its_old_session_expires(
    broker: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker.fill("in", [b"first"])
    killed = subprocess.Popen([sys.executable, "-c", PROGRAM, broker.bootstrap], stdout=subprocess.PIPE, text=True)
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "ran\n"
    finally:
        killed.kill()
        killed.wait()
    ran: list[bytes | None] = []

    def handle(message: Message) -> None:
        ran.append(message.value)

    caplog.set_level(logging.WARNING, "millpond.client")
    broker.fill("in", [b"second"])
    again = Worker(handle, "in", group="g", protocol="consumer", instance="one").start(broker.bootstrap)
    assert eventually(lambda: b"second" in ran or not again.is_running())
    again.stop()
    assert b"second" in ran
    waits = [each for each in caplog.messages if "waiting up to 75 s for its session to expire" in each]
    assert len(waits) == 1
    assert "10 s here" not in caplog.text, "the session timeout is the cluster's"


def test_an_instance_that_stays_in_use_is_refused_in_the_end(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "REJOIN_SECONDS_MAX", 2.0)
    broker.fill("in", [b"first"])
    with Consumer("g", ["in"], bootstrap=broker.bootstrap, protocol="consumer", instance="one") as holder:
        assert eventually(lambda: holder.poll(1, 0.1))
        with Consumer("g", ["in"], bootstrap=broker.bootstrap, protocol="consumer", instance="one") as other:
            began = time.monotonic()

            def poll_both() -> None:
                while time.monotonic() - began < 30:
                    other.poll(1, 0.1)
                    holder.poll(1, 0)

            with pytest.raises(Fenced, match="its own name"):
                poll_both()
            assert time.monotonic() - began > 1.5


def test_a_session_timeout_is_refused_where_the_broker_decides() -> None:
    with pytest.raises(ConfigError, match=r"consumer\.session\.timeout\.ms"):
        Consumer("g", ["in"], protocol="consumer", session_timeout_s=6.0)
    with pytest.raises(ConfigError, match=r"consumer\.session\.timeout\.ms"):
        Worker(lambda _: None, "in", group="g", protocol="consumer", session_timeout_s=6.0)
