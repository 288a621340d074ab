"""A worker that is stopped while its cluster is away: it ends in time, says what it left, and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from client.conftest import Cluster
from millpond import ClientError, Consumer, Message, Send, Timeout, Worker
from millpond.client.engine import Engine
from support.node import Node, eventually

DELIVERIES = ["at_least_once", "exactly_once", "at_most_once"]
CLOSE_S = 2.0
SLACK_S = 6.0
"""For a busy machine; without the bound it takes more than a hundred seconds."""
VALUES = [b"%d" % n for n in range(100)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, {"group.initial.rebalance.delay.ms": "0"}).start()
    yield made
    made.kill9()


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_stop_while_the_cluster_is_away_is_bounded(node: Node, delivery: Any) -> None:
    cluster = Cluster("millpond", node.bootstrap)
    cluster.create("in", 1)
    cluster.create("out", 1)
    cluster.fill("in", VALUES)
    ran: Counter[bytes | None] = Counter()

    def handle(message: Message) -> Send:
        ran[message.value] += 1
        time.sleep(0.05)
        return Send("out", message.value)

    worker = Worker(handle, "in", group="g", delivery=delivery, close_timeout_s=CLOSE_S).start(node.bootstrap)
    assert eventually(lambda: worker.stats.processed >= 5)
    node.kill9()
    time.sleep(1.0)
    began = time.monotonic()
    with pytest.raises(Timeout, match=r"left|unacknowledged"):
        worker.stop()
    assert time.monotonic() - began < CLOSE_S + SLACK_S
    assert set(ran) != set(VALUES), "nothing new is started once the worker stops"
    if delivery == "at_most_once":
        return
    node.start()
    again = Worker(handle, "in", group="g", delivery=delivery, session_timeout_s=6.0).start(node.bootstrap)
    try:
        # Not until the handlers have seen every value: the first worker may have run those that it left.
        sent = Counter(each.value for each in cluster.read("out", len(VALUES)))
    finally:
        again.stop()
    assert set(sent) == set(VALUES), "nothing is lost"
    if delivery == "exactly_once":
        assert set(sent.values()) == {1}, "a transaction that was left is either committed or aborted"


PROGRAM = """
import sys, time
from millpond import Message, Send, Worker
def handle(message: Message) -> Send:
    print("ran", flush=True)
    return Send("out", message.value)
Worker(handle, "in", group="g", delivery=sys.argv[2], close_timeout_s=float(sys.argv[3])).run(sys.argv[1])
"""


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_sigterm_is_heard_while_the_cluster_is_away(node: Node, delivery: str) -> None:
    cluster = Cluster("millpond", node.bootstrap)
    cluster.create("in", 1)
    cluster.create("out", 1)
    cluster.fill("in", VALUES)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, node.bootstrap, delivery, str(CLOSE_S)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ran\n"
        os.kill(node.pid, signal.SIGSTOP)
        time.sleep(1.0)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=CLOSE_S + 60)
        assert time.monotonic() - began < CLOSE_S + SLACK_S
        assert process.returncode != 0
        assert "left" in said or "unacknowledged" in said
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_stop_during_a_rebalance_is_bounded(node: Node, delivery: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster goes away while a partition is being handed over."""
    cluster = Cluster("millpond", node.bootstrap)
    cluster.create("in", 2)
    cluster.create("out", 1)
    cluster.fill("in", VALUES, keys=20)
    revoking, running, released = Event(), Event(), Event()
    revoked = Engine._revoked

    def note_revoked(engine: Engine, partitions: Any) -> None:
        revoking.set()
        revoked(engine, partitions)

    monkeypatch.setattr(Engine, "_revoked", note_revoked)

    def handle(message: Message) -> Send:
        running.set()
        released.wait(60)
        return Send("out", message.value)

    # All at once, so that some run in the partition that goes.
    options: Any = {"group": "g", "delivery": delivery, "close_timeout_s": CLOSE_S, "concurrency": len(VALUES)}
    worker = Worker(handle, "in", **options).start(node.bootstrap)
    assert running.wait(60)
    other = Consumer("g", ["in"], bootstrap=node.bootstrap)
    try:
        assert eventually(lambda: not other.poll(1, 0.1) and revoking.is_set())
        os.kill(node.pid, signal.SIGSTOP)
        began = time.monotonic()
        stopping = Thread(target=_stop, args=(worker,), daemon=True)
        stopping.start()
        time.sleep(0.5)
        released.set()
        stopping.join(CLOSE_S + SLACK_S)
        assert not stopping.is_alive(), f"still stopping after {time.monotonic() - began:.0f} s"
    finally:
        os.kill(node.pid, signal.SIGCONT)
        other.close()


def _stop(worker: Worker) -> None:
    with suppress(ClientError):
        worker.stop()
