"""What forks and what ends without closing: nothing is read twice, and nothing is lost without a word."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from client.conftest import Cluster
from millpond import Producer
from support.node import Node


def run(program: str, *arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)


FORKING = """
import os, sys
from millpond import ClientError, Consumer
consumer = Consumer(sys.argv[2], [sys.argv[3]], bootstrap=sys.argv[1])
found = consumer.poll(3, 20.0)
child = os.fork()
if child == 0:
    for what in (consumer.poll, consumer.next, consumer.commit, consumer.assignment, consumer.lag, consumer.pause):
        try:
            what()
        except ClientError as refusal:
            assert "forked" in str(refusal), refusal
        else:
            print(what.__name__, "was allowed", flush=True)
            os._exit(9)
    consumer.close()
    del consumer
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
while len(found) < 100:
    found += consumer.poll(100, 20.0)
consumer.commit()
consumer.close()
print(sorted(each.offset for each in found) == list(range(100)))
"""


def test_a_consumer_is_refused_in_a_child(broker: Cluster) -> None:
    topic = broker.topic(1)
    broker.fill(topic, [b"%d" % n for n in range(100)])
    done = run(FORKING, broker.bootstrap, broker.group(), topic)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


FORGETFUL = """
import sys
from millpond import Producer
producer = Producer(sys.argv[1], linger_ms=500)
for n in range(50):
    producer.send(sys.argv[2], b"%d" % n)
if sys.argv[3] == "collected":
    del producer
"""


@pytest.mark.smoke
@pytest.mark.parametrize("how", ["kept", "collected"])
def test_a_program_that_ends_without_close_flushes(broker: Cluster, how: str) -> None:
    topic = broker.topic(1)
    done = run(FORGETFUL, broker.bootstrap, topic, how)
    assert done.returncode == 0
    assert "was not closed" in done.stderr
    assert len(broker.read(topic, 50)) == 50


def test_a_program_that_ends_without_a_cluster_says_what_may_be_lost() -> None:
    began = time.monotonic()
    done = run(FORGETFUL, "127.0.0.1:1", "t", "kept")
    assert "50 records were not acknowledged: they may be lost" in done.stderr
    assert time.monotonic() - began < 40


def test_a_callback_that_raises_keyboard_interrupt_leaves_no_future_open(broker: Cluster) -> None:
    topic = broker.topic(1)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with Producer(broker.bootstrap, linger_ms=50) as producer:
        futures = [producer.send(topic, b"%d" % n) for n in range(20)]
        futures[0].add_done_callback(interrupt)
        # Nobody flushes: the delivery thread alone reads the reports.
        assert not wait(futures, 30).not_done
        assert producer.send(topic, b"after").result(30).offset == 20


STUCK = """
import asyncio, os, signal, sys
from millpond import AsyncConsumer

async def main():
    consumer = AsyncConsumer(sys.argv[2], [sys.argv[3]], bootstrap=sys.argv[1])
    found = await consumer.poll(1, 30.0)
    assert found
    os.kill(int(sys.argv[4]), signal.SIGSTOP)
    try:
        await asyncio.wait_for(consumer.commit(), 0.5)
    except TimeoutError:
        print("given up", flush=True)

asyncio.run(main())
"""


def test_a_program_ends_while_an_async_consumer_waits_for_the_cluster(tmp_path: Path) -> None:
    node = Node(tmp_path).start()
    try:
        cluster = Cluster("millpond", node.bootstrap)
        cluster.create("orders", 1)
        cluster.fill("orders", [b"x"])
        done = run(STUCK, node.bootstrap, "g", "orders", str(node.pid), seconds=30.0)
        assert (done.returncode, done.stdout) == (0, "given up\n"), done.stderr
    finally:
        node.kill9()
