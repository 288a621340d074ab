"""`python -m bench`: run the rows, show progress, print one table; see docs/BENCH.md."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.check import check, check_table_of, rows_to_check, store
from bench.figures import Figures, NoFigures, figures_for, path_of
from bench.limits import Machine, floor_of, measure_limits
from bench.line import LeftOut, Line, Row
from bench.measure import Plan
from bench.node import prepare_environment
from bench.noise import Measured
from bench.peers import MILLPOND, PEERS
from bench.profiling import Profiler
from bench.race import FAILED, Placed, race_data, race_table_of, run_race
from bench.races import RACES
from bench.rows import ROWS, floor_lines
from bench.table import SPECIAL, as_data, table_of

WIDTH_MIN = 205
"""Each row takes one line, even if the terminal is narrower."""

BACKLOG_GB = 10.0
BACKLOG_GB_QUICK = 0.25


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")
    return int(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 10,000")
    return value


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure a node; see docs/BENCH.md.")
    names = [row.name for row in ROWS]
    races = [race.name for race in RACES]
    add = parser.add_argument
    add("--quick", action="store_true", help="one short slice of everything")
    add("--only", metavar="ROW", action="append", help=f"one of {', '.join(names)}")
    add("--json", metavar="FILE", help="also write all figures to this file")
    add("--profile", metavar="ROW", choices=names, help="run one row under py-spy")
    add("--slices", type=_count, help="how often each row is repeated; the result is the median")
    add("--seconds", type=_amount, help="the length of a slice")
    add("--backlog-gb", type=_amount, help=f"the backlog of the row catch-up (default {BACKLOG_GB:g})")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--peers", action="store_true", help="run the rows that other brokers can run, alternating with them"
    )
    mode.add_argument("--check", action="store_true", help="fail if a row is slower than the stored figures")
    mode.add_argument("--store", action="store_true", help="store the figures of this run in bench/figures")
    add("--figures", metavar="FILE", help="with --check or --store: use this file instead of this machine's")
    add("--against", metavar="PEER", action="append", help=f"with --peers: only these of {', '.join(PEERS)}")
    arguments = parser.parse_args(words)
    known, what = (races, "a row that other brokers can run") if arguments.peers else (names, "a row")
    for name in arguments.only or ():
        if name not in known:
            parser.error(f"--only {name}: not {what}; choose from {', '.join(known)}")
    for name in arguments.against or ():
        if name not in PEERS:
            parser.error(f"--against {name}: unknown; choose from {', '.join(PEERS)}")
    if arguments.against and not arguments.peers:
        parser.error("--against needs --peers")
    if arguments.figures and not (arguments.check or arguments.store):
        parser.error("--figures needs --check or --store")
    if arguments.profile and (arguments.peers or arguments.check or arguments.store):
        parser.error("--profile slows the node: it cannot be combined with --peers, --check or --store")
    return arguments


def plan_of(arguments: argparse.Namespace) -> Plan:
    quick = arguments.quick
    return Plan(
        slices=arguments.slices or (1 if quick else 3),
        slice_seconds=arguments.seconds or (0.8 if quick else 1.5),
        bytes_max=(256 << 20) if quick else 1 << 30,
        backlog_bytes=int((arguments.backlog_gb or (BACKLOG_GB_QUICK if quick else BACKLOG_GB)) * 1e9),
        quick=quick,
        profiler=Profiler(arguments.profile) if arguments.profile else None,
    )


class Run:
    """The lines of each row, and why rows failed."""

    def __init__(self, plan: Plan, progress: Console) -> None:
        self._plan = plan
        self._progress = progress
        self.lines: dict[str, list[Line]] = {}
        self.failures: list[str] = []
        self.limits: Measured = {}

    def row(self, row: Row, place: str = "") -> list[Line]:
        began = time.monotonic()
        self._progress.print(f"{place}{row.name} …", end="")
        try:
            lines = row.run(self._plan)
            self._progress.print(f" {time.monotonic() - began:.1f} s", highlight=False)
        except LeftOut as reason:
            lines = [Line(row.name, {}, note=f"left out: {reason}")]
            self._progress.print(" left out")
        except (RuntimeError, OSError) as error:
            # The other rows are still useful.
            self.failures.append(f"{row.name} failed: {error}")
            lines = [Line(row.name, {}, note="failed, see below")]
            self._progress.print(" failed", style="red")
        return lines

    def rows(self, rows: list[Row]) -> None:
        for place, row in enumerate(rows, 1):
            self.lines[row.name] = self.row(row, f"{place:2}/{len(rows)}  ")

    def floor(self) -> Measured:
        """The limits of the machine, also as lines of the table."""
        self._progress.print("floor …")
        limits = measure_limits(self._plan)
        self.lines["floor"] = floor_lines(limits)
        return floor_of(limits)

    @property
    def all_lines(self) -> list[Line]:
        return [line for lines in self.lines.values() for line in lines]


def print_tables(lines: list[Line], title: str, console: Console) -> None:
    others = [line for line in lines if not any(special.has(line) for special in SPECIAL)]
    if others:
        console.print(table_of(others, title))
    for special in SPECIAL:
        if chosen := [line for line in lines if special.has(line)]:
            console.print(special.table(chosen, special.title if others else f"{special.title}\n{title}"))


def run_check(arguments: argparse.Namespace, stored: Figures, run: Run, console: Console) -> None:
    """Failures are added to those of the run."""
    rows = [row for row in rows_to_check(ROWS, stored, arguments.only) if row.name != "floor"]
    floor = run.floor()
    run.rows(rows)
    done = [row for row in rows if any(line.figures for line in run.lines[row.name])]
    checked = check(done, run.lines, floor, stored, lambda row: (run.row(row, "again  "), run.floor()))
    console.print(check_table_of(checked, f"beside {stored.machine.text()}"))
    for remark in checked.remarks:
        console.print(remark, style="yellow", markup=False)
    run.failures += [f"slower: {each.text()}" for each in checked.slower]


def run_store(arguments: argparse.Namespace, run: Run, console: Console) -> None:
    """Rows that were not selected keep their stored figures."""
    machine = Machine.this()
    path = Path(arguments.figures) if arguments.figures else path_of(machine, arguments.quick)
    figures = figures_for(machine, arguments.quick, path) if path.exists() else Figures(machine, arguments.quick)
    if not figures.machine.is_like(machine):
        raise NoFigures(f"{path} belongs to another machine ({figures.machine.text()}); name another file")
    floor = run.floor()
    run.rows([row for row in ROWS if row.name != "floor" and (not arguments.only or row.name in arguments.only)])
    if run.failures:
        # A partial run would look complete.
        console.print("nothing is stored", style="red")
        return
    store(figures, run.lines, floor)
    figures.write(path)
    console.print(f"stored in {path}", highlight=False)


def run_peers(arguments: argparse.Namespace, plan: Plan, run: Run, progress: Console) -> list[Placed]:
    """Every race in each of its ways."""
    peers = [PEERS[name] for name in arguments.against or PEERS]
    races = [(race, way) for race in RACES if not arguments.only or race.name in arguments.only for way in race.ways]
    floor = run.floor()
    run.limits = floor
    placed: list[Placed] = []
    for place, (race, way) in enumerate(races, 1):
        began = time.monotonic()
        progress.print(f"{place:2}/{len(races)}  {race.name}, {way.title} …", end="")
        found = run_race(race, way, [MILLPOND, *peers], plan)
        placed += found
        run.failures += [
            f"{race.name}, {way.title}, {each.title} {each.note}" for each in found if each.note.startswith(FAILED)
        ]
        progress.print(f" {time.monotonic() - began:.1f} s", highlight=False)
    return placed


def main(words: list[str] | None = None) -> int:
    arguments = parsed(words)
    plan = plan_of(arguments)
    prepare_environment()
    progress = Console(stderr=True)
    console = Console(width=max(Console().width, WIDTH_MIN))
    run = Run(plan, progress)
    placed: list[Placed] = []
    began = time.monotonic()
    try:
        if arguments.check:
            stored = figures_for(Machine.this(), arguments.quick, arguments.figures)
            run_check(arguments, stored, run, console)
        elif arguments.store:
            run_store(arguments, run, console)
        elif arguments.peers:
            placed = run_peers(arguments, plan, run, progress)
        else:
            only = [arguments.profile] if arguments.profile else arguments.only
            run.rows([row for row in ROWS if not only or row.name in only])
    except NoFigures as reason:
        print(reason, file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    title = f"{os.cpu_count()} cores, load {load:.1f}, {plan.slices} x {plan.slice_seconds} s, "
    title += f"{time.monotonic() - began:.0f} s in all"
    print_tables(run.all_lines, title, console)
    if placed:
        console.print(race_table_of(placed, run.limits, title))
    for failure in run.failures:
        console.print(failure, style="red", markup=False)
    if plan.profiler is not None:
        console.print(f"profile: {plan.profiler.top_path} and {plan.profiler.stacks_path}", highlight=False)
    if arguments.json:
        data = {"title": title, "machine": Machine.this().data(), "lines": as_data(run.all_lines)}
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({**data, "peers": race_data(placed)}, out, indent=1)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
