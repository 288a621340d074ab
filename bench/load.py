"""The client process: `python -m bench.load NAME JSON` prepares, then runs a slice for each line of input."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Protocol

from bench.noise import Measured


class Load(Protocol):
    def run(self, seconds: float) -> Measured: ...


MODULES: dict[str, tuple[str, ...]] = {
    "load_raw": ("FetchLarge", "FetchOn", "Idle", "ProduceLarge", "ProduceOne", "ProducePaced", "Spread"),
    "load_confluent": ("Consume", "Latency", "ProduceLibrdkafka", "ProducePython"),
    "load_small": ("SmallRequests",),
    "load_crowd": ("Crowd", "Groups"),
    "load_transactions": ("Copy", "Transactions"),
    "load_clients": ("Reads", "Sends"),
    "load_queue": ("Jobs", "PacedJobs"),
    "load_foreign": ("Bulk", "One", "Paced", "Read"),
}
"""Loads by module, imported on use: a process loads only the libraries of its load."""


def load_class(name: str) -> type[Load]:
    module = next(module for module, names in MODULES.items() if name in names)
    chosen: type[Load] = getattr(import_module(f"bench.{module}"), name)
    return chosen


def main() -> None:
    name, arguments = sys.argv[1:]
    load = load_class(name)(**json.loads(arguments))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(load.run(float(line))), flush=True)
    close = getattr(load, "close", None)
    if close is not None:
        close()


if __name__ == "__main__":
    main()
