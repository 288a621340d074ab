"""A queue worker in a cluster whose leaders and coordinators move, and die."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from millpond import Message, Queue, Retry, Worker
from millpond.testing import Ponds
from support.node import eventually
from support.patience import with_time

JOBS = 300


@with_time
@pytest.mark.timeout(300)
@pytest.mark.millponds(settings={"share.coordinator.state.topic.num.partitions": "3"})
def test_no_job_is_lost_when_nodes_die(millponds: Ponds) -> None:
    topic = millponds.create_topic("jobs", partitions=3)
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def handler(message: Message) -> None:
        number = int(message.value or b"")
        time.sleep(0.01)
        with lock:
            seen[number] += 1
        if number % 50 == 0 and seen[number] == 1:
            raise ValueError("once")

    bootstrap = millponds.bootstrap
    with Queue(topic, bootstrap=bootstrap) as queue:
        for number in range(JOBS):
            queue.send(b"%d" % number, key=str(number))
    worker = Worker(
        handler, topic, group="g", mode="queue", concurrency=4, retries=Retry(3, first_s=0.05), dead_letters="j.dlq"
    ).start(bootstrap)
    try:
        for limit in (JOBS // 4, JOBS // 2):
            assert eventually(lambda limit=limit: len(seen) >= limit)
            node = millponds.leader(topic)
            node.kill()
            assert eventually(lambda node=node: millponds.leader(topic) is not node)
            node.start()
        assert eventually(lambda: len(seen) == JOBS)
        with Queue(topic, group="g", bootstrap=bootstrap) as queue:
            assert eventually(lambda: not queue.receive(timeout=1))
    finally:
        worker.stop()
    assert worker.stats.dead == 0
    assert worker.stats.processed >= JOBS - worker.stats.expired
