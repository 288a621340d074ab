"""Whether producing gets slower when monitoring asks for /metrics every second: the same load in turns, with and
without being asked, against one node with many partitions."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from bench.load_raw import Measured
from bench.measure import Plan, client, median_of, one_slice
from bench.node import HOST, Node, free_port
from millpond.wire import messages as m

PARTITIONS = 1_000
PARTITIONS_QUICK = 200
EVERY_SECONDS = 1.0
ANSWER_SECONDS = 30.0
CREATE_VERSION = 7


class Scraper:
    """Asks as Prometheus does, and keeps how long each page took and how large it was."""

    def __init__(self, port: int) -> None:
        self._address = f"http://{HOST}:{port}/metrics"
        self.seconds: list[float] = []
        self.page_bytes = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                self.ask()
                over.wait(EVERY_SECONDS)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def ask(self) -> None:
        began = time.perf_counter()
        with urllib.request.urlopen(self._address, timeout=ANSWER_SECONDS) as answer:
            self.page_bytes = len(answer.read())
        self.seconds.append(time.perf_counter() - began)


def _create_wide(node: Node, count: int) -> None:
    wanted = m.CreateTopicsRequest.CreatableTopic(name="wide", num_partitions=count, replication_factor=-1)
    with node.connect() as asking:
        reply = asking.call(m.CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), CREATE_VERSION)
    assert isinstance(reply, m.CreateTopicsResponse)
    if reply.topics[0].error_code:
        raise RuntimeError(f"the topic was not made: {reply.topics[0].error_message}")


def measure_asked(plan: Plan, load: str, **arguments: object) -> tuple[Measured, Measured, Scraper, int]:
    """The load without being asked and with it, how the pages were, and how many partitions there are."""
    count = PARTITIONS_QUICK if plan.quick else PARTITIONS
    port = free_port()
    scraper = Scraper(port)
    alone: list[Measured] = []
    asked: list[Measured] = []
    with Node({"metrics.listener": f"{HOST}:{port}"}) as node:
        _create_wide(node, count)
        node.create_topic("narrow")
        with client(load, node, topic="narrow", **arguments) as started:
            for _ in range(plan.slices):
                alone.append(one_slice(node, started, plan.slice_seconds))
                with scraper.asking():
                    asked.append(one_slice(node, started, plan.slice_seconds))
    return median_of(alone), median_of(asked), scraper, count
