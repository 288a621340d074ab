"""`python -m bench`: run the rows, show progress, print one table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from rich.console import Console

from bench.crowd import HEARTBEAT_MS
from bench.measure import Plan
from bench.profiling import Profiler
from bench.rebalance import MEMBERS, PARTITIONS
from bench.rows import ROWS, Line, Row
from bench.table import (
    as_data,
    busy_table_of,
    is_busy,
    is_outage,
    is_rebalance,
    is_stall,
    outage_table_of,
    rebalance_table_of,
    stall_table_of,
    table_of,
)

WIDTH_MIN = 205
"""The table is one line a row, also where the output is narrow or not a terminal."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure a node; see docs/BENCH.md.")
    names = [row.name for row in ROWS]
    parser.add_argument("--quick", action="store_true", help="one short slice of everything")
    parser.add_argument("--only", metavar="ROW", action="append", choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument("--json", metavar="FILE", help="write all figures there as well")
    parser.add_argument("--profile", metavar="ROW", choices=names, help="run one row under py-spy")
    parser.add_argument("--slices", type=int, help="how often a row is repeated; the median counts")
    parser.add_argument("--seconds", type=float, help="how long one slice takes")
    return parser.parse_args()


def plan_of(arguments: argparse.Namespace) -> Plan:
    quick = arguments.quick
    return Plan(
        slices=arguments.slices or (1 if quick else 3),
        slice_seconds=arguments.seconds or (0.8 if quick else 1.5),
        bytes_max=(256 << 20) if quick else 1 << 30,
        quick=quick,
        profiler=Profiler(arguments.profile) if arguments.profile else None,
    )


def run_rows(rows: list[Row], plan: Plan, console: Console) -> tuple[list[Line], list[str]]:
    """All lines, and why rows failed."""
    lines: list[Line] = []
    failures: list[str] = []
    for place, row in enumerate(rows, 1):
        began = time.monotonic()
        console.print(f"{place:2}/{len(rows)}  {row.name} …", end="")
        try:
            lines += row.run(plan)
            console.print(f" {time.monotonic() - began:.1f} s", highlight=False)
        except (RuntimeError, OSError) as error:
            # The other rows are still worth having.
            failures.append(f"{row.name} failed: {error}")
            lines.append(Line(row.name, {}, note="failed, see below"))
            console.print(" failed", style="red")
    return lines, failures


def print_tables(lines: list[Line], title: str, console: Console) -> None:
    rebalances = [line for line in lines if is_rebalance(line)]
    stalls = [line for line in lines if is_stall(line)]
    outages = [line for line in lines if is_outage(line)]
    busy = [line for line in lines if is_busy(line)]
    special = {id(line) for line in (*rebalances, *stalls, *outages, *busy)}
    others = [line for line in lines if id(line) not in special]
    if others:
        console.print(table_of(others, title))
    if rebalances:
        what = (
            f"one of {MEMBERS} consumers of {PARTITIONS} partitions is restarted, a heartbeat every {HEARTBEAT_MS} ms"
        )
        console.print(rebalance_table_of(rebalances, what if others else f"{what}\n{title}"))
    if outages:
        what = "how long writes stand still (the longest time between two acknowledgements of a partition)"
        console.print(outage_table_of(outages, what if others else f"{what}\n{title}"))
    if busy:
        what = "three nodes with many partitions of three replicas"
        console.print(busy_table_of(busy, what if others else f"{what}\n{title}"))
    if stalls:
        what = "how long the loop stands still"
        console.print(stall_table_of(stalls, what if others else f"{what}\n{title}"))


def main() -> int:
    arguments = parsed()
    plan = plan_of(arguments)
    only = [arguments.profile] if arguments.profile else arguments.only
    rows = [row for row in ROWS if not only or row.name in only]
    # Clients are started as `-m bench.load`.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    progress = Console(stderr=True)
    began = time.monotonic()
    lines, failures = run_rows(rows, plan, progress)
    load = os.getloadavg()[0]
    title = f"{os.cpu_count()} cores, load {load:.1f}, {plan.slices} x {plan.slice_seconds} s, "
    title += f"{time.monotonic() - began:.0f} s in all"
    console = Console(width=max(Console().width, WIDTH_MIN))
    print_tables(lines, title, console)
    for failure in failures:
        console.print(failure, style="red", markup=False)
    if plan.profiler is not None:
        console.print(f"profile: {plan.profiler.top_path} and {plan.profiler.stacks_path}", highlight=False)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"title": title, "lines": as_data(lines)}, out, indent=1)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
