"""Take the screenshots in docs/images: `python tools/pictures.py [trace topic …]`; check the result by eye.

The script fills a cluster of three nodes, runs the console and opens its pages in Chromium. The figures are measured
live, so screenshots differ from run to run.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# For the console process of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from millpond.client import dead_letters
from millpond.testing import Ponds, ponds
from support.console import Console

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT = 1240, 860
RECORDS_PER_SECOND = 200
HOT_SHARE = 0.4
LETTERS = 60
GROWTH_SECONDS = 8.0
"""How long to wait before a screenshot: the charts need some points."""


def overview(page: Any) -> None:
    page.goto("/")
    page.get_by_text("needs attention").wait_for()
    time.sleep(GROWTH_SECONDS)


def topic(page: Any) -> None:
    page.goto("/topics/orders")
    page.locator(".logrow").nth(5).wait_for()
    time.sleep(GROWTH_SECONDS)


def moves(page: Any) -> None:
    page.goto("/cluster")
    page.get_by_role("button", name="Move partitions").click()
    page.get_by_label("Topic", exact=True).fill("payments")
    page.get_by_label("To the nodes").fill("3, 1")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Move 3 partitions").wait_for()


def trace(page: Any) -> None:
    page.goto("/trace")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("heading", name="Hop by hop").wait_for()


def simulator(page: Any) -> None:
    page.goto("/simulator?lesson=failover")
    page.get_by_text("it stops at a question").wait_for()
    page.get_by_label("Speed").select_option("4000")
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_role("button", name="Play the answer").click()
    page.locator(".sim-story li", has_text="leads from now on").last.wait_for()
    page.locator(".sim-controls button.main").click()


PICTURES: dict[str, tuple[Callable[[Any], None], dict[str, Any], bool]] = {
    "overview": (overview, {}, False),
    "topic": (topic, {}, True),
    "moves": (moves, {}, False),
    "trace": (trace, {"color_scheme": "dark"}, True),
    "simulator": (simulator, {}, True),
}
"""For each: how to reach it, browser options, and whether to capture the full page."""


def fill(cluster: Ponds) -> None:
    from confluent_kafka import TopicPartition

    cluster.create_topic("orders", 6, replicas=3)
    cluster.create_topic("payments", 3, replicas=2)
    cluster.create_topic("orders.dlq", 1, replicas=3)
    cluster.produce("payments", *((f"card-{number}", "x" * 100) for number in range(300)))
    cause = {
        dead_letters.TOPIC: b"orders",
        dead_letters.PARTITION: b"0",
        dead_letters.OFFSET: b"1",
        dead_letters.TIMESTAMP: b"0",
        dead_letters.ATTEMPTS: b"3",
        dead_letters.ERROR_TYPE: b"ValueError",
        dead_letters.ERROR_MESSAGE: b"no such customer",
        dead_letters.GROUP: b"billing",
        dead_letters.TIME: b"0",
    }
    cluster.produce("orders.dlq", *((f"customer-{number}", "{}") for number in range(LETTERS)), headers=cause)
    for group, offset in (("search", 200), ("billing", 0)):
        where = [TopicPartition("orders", each, offset) for each in range(6)]
        cluster.consumer(group).commit(offsets=where, asynchronous=False)


@contextmanager
def continuous_writes(cluster: Ponds) -> Iterator[None]:
    """Write orders continuously, many of them by one customer."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.1):
            some = []
            for _ in range(RECORDS_PER_SECOND // 10):
                number += 1
                customer = 0 if random.random() < HOT_SHARE else random.randrange(1, 500)
                some.append((f"customer-{customer}", json.dumps({"order": number, "cents": random.randrange(9999)})))
            cluster.produce("orders", *some)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def take(names: list[str], folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    with ponds(nodes=3) as cluster:
        fill(cluster)
        console = Console(cluster.bootstrap)
        try:
            with continuous_writes(cluster), sync_playwright() as run:
                browser = run.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                for name in names:
                    make, options, is_whole = PICTURES[name]
                    size = {"width": WIDTH, "height": HEIGHT}
                    page = browser.new_page(base_url=console.url, viewport=size, **options)
                    page.set_default_timeout(60_000)
                    make(page)
                    page.screenshot(path=folder / f"console-{name}.png", full_page=is_whole)
                    page.close()
                    print(folder / f"console-{name}.png")
        finally:
            console.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(PICTURES)}; default: all"
    )
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="FOLDER")
    arguments = parser.parse_args()
    if unknown := [each for each in arguments.names if each not in PICTURES]:
        parser.error(f"unknown picture {unknown[0]}; choose from {', '.join(PICTURES)}")
    take(arguments.names or list(PICTURES), arguments.into)


if __name__ == "__main__":
    main()
