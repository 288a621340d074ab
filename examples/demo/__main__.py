"""The demo: a node, a stream of orders with real faults, three Spark jobs, and a check of every row at the end.

Usage: make demo   (or: make demo ARGS="--orders 5000 --seconds 20 --folder /tmp/demo")
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Final

# The demo's modules are next to this file, like those of a user's program.
sys.path.insert(0, str(Path(__file__).parent))

from morning import Event, Shop
from pond import Program, Watch, free_address, wait_until_it_listens
from summary import check, revenue_of, show

from millpond import Producer

PARTITIONS: Final = 4
PATIENCE_SECONDS: Final = 240.0
STARTING_SECONDS: Final = 120.0


def main() -> int:
    arguments = read_arguments()
    folder = Path(arguments.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bootstrap = free_address()
    environment = {"MILLPOND_BOOTSTRAP": bootstrap, "DEMO_FOLDER": str(folder)}
    begun = time.monotonic()
    print(f"A node on {bootstrap}; everything is in {folder}", flush=True)
    node = Program(
        "up",
        "--listen",
        bootstrap,
        "--data",
        str(folder / "data"),
        environment=environment,
        output=folder / "node.log",
    )
    pipeline: Program | None = None
    watch = Watch(bootstrap, PARTITIONS)
    try:
        wait_until_it_listens(bootstrap, node)
        create_topics(environment)
        watch.start()
        declaration = Path(__file__).parent / "orders.toml"
        pipeline = Program("pipeline", "run", str(declaration), environment=environment)
        shop = Shop(arguments.orders)
        send(shop, bootstrap, arguments.seconds, watch)
        is_done = wait_until_done(watch, pipeline, folder / "lake", shop)
        code = pipeline.stop()
    finally:
        watch.stop()
        if pipeline is not None:
            pipeline.stop()
        node.stop()
    if code or not is_done:
        print(f"The pipeline did not finish (exit code {code}); its log is below {folder / 'pipeline'}")
        return 1
    return report(folder, shop, watch, time.monotonic() - begun)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo ARGS=…", description=__doc__)
    parser.add_argument("--orders", type=int, default=20_000, help="how many orders are placed")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long it takes to send their events")
    parser.add_argument("--folder", default=".millpond/demo", help="where everything goes; emptied first")
    return parser.parse_args()


def create_topics(environment: dict[str, str]) -> None:
    for name, partitions in (("orders", PARTITIONS), ("orders.dlq", 1)):
        made = Program("topic", "create", name, "--partitions", str(partitions), environment=environment)
        if made.stop_when_done():
            raise SystemExit(f"topic {name} could not be created")


def send(shop: Shop, bootstrap: str, seconds: float, watch: Watch) -> None:
    """Send a tenth of the events while Spark starts, and the others evenly over the given time."""
    with Producer(bootstrap=bootstrap) as producer:
        events = list(shop.events())
        early = len(events) // 10
        for event in events[:early]:
            send_one(producer, event)
        producer.flush()
        watch.wait_until_read(STARTING_SECONDS)
        begun = time.monotonic()
        for number, event in enumerate(events[early:]):
            ahead = begun + seconds * number / (len(events) - early) - time.monotonic()
            if ahead > 0.01:
                time.sleep(ahead)
            send_one(producer, event)
        for partition, event in enumerate(shop.closing(PARTITIONS)):
            send_one(producer, event, partition)


def send_one(producer: Producer, event: Event, partition: int | None = None) -> None:
    producer.send("orders", event.value, key=event.key, partition=partition)


def wait_until_done(watch: Watch, pipeline: Program, lake: Path, shop: Shop) -> bool:
    """Wait until no job has any lag, and the windows closed by the last events are written."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pipeline.is_running() and time.monotonic() < deadline:
        if watch.is_read() and len(revenue_of(lake)) >= len(shop.truth.revenue):
            # Poll the cluster once more, so that the chart ends at zero.
            time.sleep(1.5)
            return True
        time.sleep(0.5)
    return False


def report(folder: Path, shop: Shop, watch: Watch, seconds: float) -> int:
    from chart import draw

    lines = check(folder / "lake", shop.truth, watch.samples[-1].dead_letters)
    show(lines, shop.truth, seconds)
    picture = folder / "orders.png"
    draw(picture, revenue_of(folder / "lake"), watch.samples)
    print(f"The chart: {picture}")
    print("Look further: the tables are Delta tables below lake/, the dead letters in the topic orders.dlq.")
    return 0 if all(line.is_right for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
