"""Whether producing gets slower when monitoring asks for /metrics, every second or without a pause: the same load in
turns, with and without being asked, against one node with many partitions."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.measure import Plan, client, one_slice
from bench.node import HOST, Node, free_port
from bench.noise import Measured, medians_of

PARTITIONS = 1_000
PARTITIONS_QUICK = 200
PACES = {"every second": 1.0, "without a pause": 0.0}
ANSWER_SECONDS = 30.0


class Scraper:
    """Asks as Prometheus does, and keeps how long each page took and how large it was."""

    def __init__(self, port: int, every_seconds: float) -> None:
        self._address = f"http://{HOST}:{port}/metrics"
        self._every_seconds = every_seconds
        self.seconds: list[float] = []
        self.page_bytes = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                self.ask()
                over.wait(self._every_seconds)

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


class Asked(NamedTuple):
    figures: Measured
    scraper: Scraper


def measure_asked(plan: Plan, load: str, **arguments: object) -> tuple[Measured, dict[str, Asked], int]:
    """The load without being asked, with it by each pace, and how many partitions there are."""
    count = PARTITIONS_QUICK if plan.quick else PARTITIONS
    port = free_port()
    scrapers = {pace: Scraper(port, seconds) for pace, seconds in PACES.items()}
    alone: list[Measured] = []
    asked: dict[str, list[Measured]] = {pace: [] for pace in PACES}
    with Node({"metrics.listener": f"{HOST}:{port}"}) as node:
        with node.connect() as asking:
            asking.make_topic("wide", count)
        node.create_topic("narrow")
        with client(load, node, topic="narrow", **arguments) as started:
            for _ in range(plan.slices):
                alone.append(one_slice(node, started, plan.slice_seconds))
                for pace, scraper in scrapers.items():
                    with scraper.asking():
                        asked[pace].append(one_slice(node, started, plan.slice_seconds))
    return medians_of(alone), {pace: Asked(medians_of(asked[pace]), scrapers[pace]) for pace in PACES}, count
