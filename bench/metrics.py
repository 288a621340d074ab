"""The cost of monitoring: the same load, alternately, without scrapes of /metrics, with one per second, and with
continuous ones, against a node with many partitions."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Plan, Slice, client, medians_in_turn, one_slice, slice_of
from bench.node import HOST, Node, free_port
from bench.noise import Measured

PARTITIONS = 1_000
PARTITIONS_QUICK = 200
INTERVALS = {"every second": 1.0, "without a pause": 0.0}
ANSWER_SECONDS = 30.0


class Scraper:
    """Scrapes like Prometheus, and records the duration and size of pages."""

    def __init__(self, port: int, every_seconds: float) -> None:
        self._address = f"http://{HOST}:{port}/metrics"
        self._every_seconds = every_seconds
        self.seconds: list[float] = []
        self.page_bytes = 0

    @contextmanager
    def scraping(self) -> Iterator[None]:
        over = threading.Event()

        def scrape() -> None:
            while not over.is_set():
                self.scrape()
                over.wait(self._every_seconds)

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def scrape(self) -> None:
        began = time.perf_counter()
        with urllib.request.urlopen(self._address, timeout=ANSWER_SECONDS) as response:
            self.page_bytes = len(response.read())
        self.seconds.append(time.perf_counter() - began)


def measure_scrapes(
    plan: Plan, load: str, **arguments: object
) -> tuple[dict[str, Measured], dict[str, Scraper], int]:
    """The load's figures with each interval between scrapes and under "" without any; the scrapers; and the number of
    partitions."""
    count = PARTITIONS_QUICK if plan.quick else PARTITIONS
    port = free_port()
    scrapers = {name: Scraper(port, seconds) for name, seconds in INTERVALS.items()}
    with Node({"metrics.listener": f"{HOST}:{port}"}) as node:
        with node.connect() as admin:
            admin.make_topic("wide", count)
        node.create_topic("narrow")
        with client(load, node, topic="narrow", **arguments) as started:

            def with_scrapes(scraper: Scraper) -> Slice:
                def run(seconds: float) -> Measured:
                    with scraper.scraping():
                        return one_slice(node, started, seconds)

                return run

            slices = {"": slice_of(node, started), **{name: with_scrapes(each) for name, each in scrapers.items()}}
            return medians_in_turn(plan, slices), scrapers, count
