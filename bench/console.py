"""The cost of the console, and how quickly its pages load, with a large cluster.

Not a row: `python -m bench.console [--quick]`. A node gets 1,000 topics with 10,000 partitions, a group of 500 and
100,000 dead letters. A real browser opens each page: "first paint" is when it shows anything, "there" when it has the
page's data, "ready" when a typed filter or a pressed button has taken effect. Then a node is started and written to,
alternately with a console and without; the result is the ratio of medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Producer
from rich.console import Console as Screen
from rich.table import Table

from bench.node import HOST, Node, free_port
from millpond.client import dead_letters
from millpond.remote.cluster import Cluster
from millpond.remote.topics import create_topic
from millpond.wire import messages as m

TOPICS, PARTITIONS_EACH = 1_000, 10
MEMBERS = 500
LETTERS = 100_000
QUICK = 50
"""`--quick` divides every size by this."""
ROUNDS = 7
PRODUCE_SECONDS = 2.0
BEAT_SECONDS = 10.0
SECONDS_MAX = 60_000

GROUP, READ, DEAD = "crowd", "topic-0000", "topic-0000.dlq"
ERRORS: Final = ("ValueError", "Timeout", "KeyError", "billing.CardRefused")


@dataclass(frozen=True, slots=True)
class View:
    path: str
    there: str
    """A selector that matches once the page has its data."""
    use: Callable[[Any], None]
    """A first interaction, until it has completed."""


def _filter(name: str, text: str, row: str) -> Callable[[Any], None]:
    def use(page: Any) -> None:
        page.get_by_label(name).first.fill(text)
        page.locator(row, has_text=text).first.wait_for()
        page.wait_for_function(
            "([row, text]) => [...document.querySelectorAll(row)].every((each) => each.textContent.includes(text))",
            arg=[row, text],
        )

    return use


def _nothing(_: Any) -> None:
    """The page has no interaction that asks the cluster."""


VIEWS: Final = (
    View("/", ".tile", _nothing),
    View("/topics", "td.name", _filter("Filter topics by name", "topic-0007", "td.name")),
    View(f"/topics/{READ}", ".logrow", _nothing),
    View("/groups", "td.name", _filter("Filter groups by name", GROUP, "td.name")),
    View(f"/groups/{GROUP}", "td.name", _filter("Filter members", "member-0017", "section:nth-of-type(2) td.name")),
    View("/letters", "td.name", _nothing),
    View(f"/letters/{DEAD}", "table.records td", lambda page: page.locator(".columns-chart").wait_for()),
    View("/transactions", ".tile", _nothing),
    View("/cluster", "td.name", _nothing),
    View("/hot", "td.name", _filter("Filter topics by name", "topic-0007", "td.name")),
)


def fill(node: Node, less: int) -> None:
    """Create the topics and dead letters."""
    with Cluster({"bootstrap.servers": node.address, "default.api.timeout.ms": "120000"}) as cluster:
        for number in range(max(10, TOPICS // less)):
            create_topic(cluster, f"topic-{number:04}", PARTITIONS_EACH)
        create_topic(cluster, DEAD, 4)
        produce_letters(node, max(100, LETTERS // less))


def produce_letters(node: Node, number: int) -> None:
    producer = Producer(
        {"bootstrap.servers": node.address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    for each in range(number):
        facts = {
            dead_letters.TOPIC: READ.encode(),
            dead_letters.PARTITION: b"0",
            dead_letters.OFFSET: b"%d" % each,
            dead_letters.TIMESTAMP: b"0",
            dead_letters.ATTEMPTS: b"3",
            dead_letters.ERROR_TYPE: ERRORS[each % len(ERRORS)].encode(),
            dead_letters.ERROR_MESSAGE: b"it broke",
            dead_letters.GROUP: GROUP.encode(),
        }
        producer.produce(DEAD, b'{"order": %d}' % each, b"key-%d" % (each % 1000), headers=list(facts.items()))
        producer.poll(0)
    producer.flush(120)


class Crowd(threading.Thread):
    """Members of a group of the new protocol, which only send heartbeats."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(daemon=True)
        self._cluster = Cluster({"bootstrap.servers": address})
        self._epochs = {f"member-{each:04}": 0 for each in range(number)}
        self._shares: dict[str, dict[UUID, list[int]]] = {}
        self._is_over = threading.Event()
        self.is_there = threading.Event()

    def __enter__(self) -> Crowd:
        self.start()
        if not self.is_there.wait(120):
            raise RuntimeError("the group did not come together")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join(30)
        self._cluster.close()

    def run(self) -> None:
        rounds = 0
        while not self._is_over.is_set():
            for name, epoch in self._epochs.items():
                self._epochs[name] = self._beat(name, epoch)
            rounds += 1
            if rounds >= 3:
                self.is_there.set()
                self._is_over.wait(BEAT_SECONDS)

    def _beat(self, name: str, epoch: int) -> int:
        kind, joining = m.ConsumerGroupHeartbeatRequest, epoch == 0
        owned = self._shares.get(name, {})
        request = kind(
            group_id=GROUP,
            member_id=name,
            member_epoch=epoch,
            rebalance_timeout_ms=300_000 if joining else -1,
            subscribed_topic_names=[READ] if joining else None,
            topic_partitions=[kind.TopicPartitions(topic_id=topic, partitions=each) for topic, each in owned.items()],
        )
        response = self._cluster.ask_coordinator(
            "group", GROUP, request, m.ConsumerGroupHeartbeatResponse, lambda each: each.error_code
        )
        if response.error_code:
            raise RuntimeError(f"{name} is not let in: {response.error_message}")
        if response.assignment is not None:
            self._shares[name] = {each.topic_id: each.partitions for each in response.assignment.topic_partitions}
        return int(response.member_epoch)


@contextmanager
def console_of(address: str) -> Iterator[str]:
    """Run a console for a node; its address."""
    words = [sys.executable, "-m", "millpond.console", "--bootstrap", address, "--listen", f"{HOST}:0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().partition("http://")[2].split()[0]
    finally:
        process.terminate()
        process.wait(20)


@dataclass(frozen=True, slots=True)
class Opened:
    path: str
    paint_ms: float
    there_ms: float
    ready_ms: float


PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"


def open_pages(address: str, rounds: int) -> Iterator[Opened]:
    from playwright.sync_api import sync_playwright

    with console_of(address) as where, sync_playwright() as run:
        browser = run.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for view in VIEWS:
            found: list[Opened] = []
            for _ in range(rounds):
                page = browser.new_page()
                page.set_default_timeout(SECONDS_MAX)
                began = time.perf_counter()
                page.goto(f"http://{where}{view.path}")
                page.locator(view.there).first.wait_for()
                there_ms = (time.perf_counter() - began) * 1000
                view.use(page)
                ready_ms = (time.perf_counter() - began) * 1000
                found.append(Opened(view.path, float(page.evaluate(PAINT)), there_ms, ready_ms))
                page.close()
            yield Opened(
                view.path,
                *(
                    statistics.median(getattr(each, name) for each in found)
                    for name in ("paint_ms", "there_ms", "ready_ms")
                ),
            )
        browser.close()


class NodeWithConsole(Node):
    def words(self, folder: str) -> list[str]:
        words = super().words(folder)
        at = words.index("--no-console")
        return [*words[:at], "--console", f"{HOST}:{free_port()}", *words[at + 1 :]]


def ready_ms(kind: type[Node]) -> float:
    with kind() as node:
        return node.ready.seconds * 1000


def ready_cpu_ms(kind: type[Node]) -> float:
    """CPU time of the node's process, which depends less on other load than wall time."""
    with kind() as node:
        return node.ready.cpu_seconds * 1000


def cpu_us_per_record(kind: type[Node]) -> float:
    """The node's CPU time per record of 100 bytes, in batches of up to 200."""
    with kind() as node:
        node.create_topic("bench")
        producer = Producer({"bootstrap.servers": node.address, "linger.ms": 0, "acks": "1", "log_level": 0})
        count = 0
        before = node.cpu_seconds()
        deadline = time.perf_counter() + PRODUCE_SECONDS
        while time.perf_counter() < deadline:
            for _ in range(200):
                producer.produce("bench", b"x" * 100)
            producer.flush()
            count += 200
        return (node.cpu_seconds() - before) * 1e6 / count


def turn_by_turn(measure: Callable[[type[Node]], float], rounds: int) -> tuple[float, float]:
    """The medians without a console, and with one; rounds alternate, so that other load affects both alike."""
    without, beside = [], []
    for number in range(rounds):
        for kind, found in ((Node, without), (NodeWithConsole, beside))[:: 1 if number % 2 else -1]:
            found.append(measure(kind))
    return statistics.median(without), statistics.median(beside)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of everything, once")
    parser.add_argument("--pages", action="store_true", help="the pages alone")
    parser.add_argument("--cost", action="store_true", help="what it costs a node, alone")
    quick, only_pages, only_cost = (parsed := parser.parse_args()).quick, parsed.pages, parsed.cost
    less, rounds = (QUICK, 1) if quick else (1, ROUNDS)
    os.environ.pop("MILLPOND_CONSOLE", None)
    screen = Screen()
    if not only_cost:
        show_pages(screen, less, rounds)
    if not only_pages:
        show_cost(screen, rounds)


def show_pages(screen: Screen, less: int, rounds: int) -> None:
    with Node() as node:
        began = time.monotonic()
        fill(node, less)
        table = Table("page", "first paint, ms", "there, ms", "ready, ms")
        with Crowd(node.address, max(20, MEMBERS // less)):
            screen.print(f"filled in {time.monotonic() - began:.0f} s", style="dim")
            for each in open_pages(node.address, min(3, rounds)):
                table.add_row(each.path, f"{each.paint_ms:,.0f}", f"{each.there_ms:,.0f}", f"{each.ready_ms:,.0f}")
        screen.print(table)


def show_cost(screen: Screen, rounds: int) -> None:
    table = Table("a node", "without a console", "with one", "ratio")
    for title, measure in (
        ("ready after, ms", ready_ms),
        ("CPU until it is ready, ms", ready_cpu_ms),
        ("CPU of a record that is written, µs", cpu_us_per_record),
    ):
        without, beside = turn_by_turn(measure, rounds)
        table.add_row(title, f"{without:,.1f}", f"{beside:,.1f}", f"{beside / without:.2f}")
    screen.print(table, f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
