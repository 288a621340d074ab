"""The figures of a run as one table, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from bench.line import Line
from bench.noise import MORE_IS_BETTER, Measured

AIM = 0.5
"""No worse than half as fast as the prototype."""

UNITS = {
    "messages_per_s": "msg/s",
    "mb_per_s": "MB/s",
    "requests_per_s": "req/s",
    "cpu_s_per_gb": "s/GB",
    "cpu_s_per_million": "s/M",
    "us_per_request": "µs",
    "p50_ms": "ms p50",
    "p99_ms": "ms p99",
    "resident_mb": "MB",
    "ready_ms": "ms",
}


def speed_ratio(name: str, ours: float, prototype: float) -> float:
    """How fast or thrifty we are beside the prototype: 1 is equal, 2 twice as good, 0.5 half."""
    return ours / prototype if name in MORE_IS_BETTER else prototype / ours


def short(value: float | None) -> str:
    """A figure in three digits or so."""
    if value is None:
        return ""
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (size if letter == 'M' else 1e3):.3g} {letter}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def latency_text(figures: Measured) -> str:
    if "p50_ms" not in figures:
        return ""
    return " / ".join(short(figures[name]) for name in ("p50_ms", "p99_ms", "p999_ms"))


def _beside_prototype(line: Line) -> Text:
    """The prototype's figures, each with how we compare."""
    told = Text()
    for name, prototype in line.prototype.items():
        told.append("  " if told else "")
        told.append(f"{short(prototype)} {UNITS[name]}")
        if name in line.figures:
            ratio = speed_ratio(name, line.figures[name], prototype)
            told.append(f" x{ratio:.2f}", style="bold green" if ratio >= AIM else "bold red")
    return told


def table_of(lines: list[Line], title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("row", no_wrap=True)
    for heading in ("msg/s", "MB/s", "CPU s\n/GB", "CPU s\n/M msg", "CPU µs\n/request", "core\n%"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("p50 / p99 / p99.9\nms", justify="right", no_wrap=True)
    for heading in ("RSS\nMB", "ready\nms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("prototype, and ours beside it", no_wrap=True)
    table.add_column("note", no_wrap=True)
    for line in lines:
        figures = line.figures
        table.add_row(
            line.title,
            *(
                short(figures.get(name))
                for name in ("messages_per_s", "mb_per_s", "cpu_s_per_gb", "cpu_s_per_million", "us_per_request")
            ),
            _whole(figures.get("core_share"), 100),
            latency_text(figures),
            _whole(figures.get("resident_mb")),
            _whole(figures.get("ready_ms")),
            _beside_prototype(line),
            line.note,
        )
    return table


def is_rebalance(line: Line) -> bool:
    return "stable_ms" in line.figures


def rebalance_table_of(lines: list[Line], title: str) -> Table:
    """How long partitions stand still while a member is restarted."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("how partitions are shared out", no_wrap=True)
    for heading in (
        "moved\npartitions",
        "longest pause of\nthose, ms",
        "longest pause of\nothers, ms",
        "stable\nafter ms",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note", no_wrap=True)
    for line in lines:
        names = ("moved", "moved_pause_ms", "kept_pause_ms", "stable_ms")
        table.add_row(line.title, *(_whole(line.figures[name]) for name in names), line.note)
    return table


def is_stall(line: Line) -> bool:
    return "longest_ms" in line.figures


def stall_table_of(lines: list[Line], title: str) -> Table:
    """How long one client keeps another waiting."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("while the node has to do with", no_wrap=True)
    table.add_column("longest round trip\nof another client, ms", justify="right", no_wrap=True)
    table.add_column("note", no_wrap=True)
    for line in lines:
        table.add_row(line.title, f"{line.figures['longest_ms']:,.1f}", line.note)
    return table


def is_busy(line: Line) -> bool:
    return "turn_cpu_ms" in line.figures


def busy_table_of(lines: list[Line], title: str) -> Table:
    """What a large cluster is busy with, and how long its loops stand still meanwhile."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("while three nodes have to do with", no_wrap=True)
    for heading in (
        "over after\ns",
        "longest turn,\nCPU ms",
        "longest turn,\nms",
        "turns of more\nthan 50 CPU ms",
        "longest garbage\ncollection, ms",
        "CPU of all nodes\ns",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        names = ("turn_cpu_ms", "turn_wall_ms", "long_turns", "gc_ms")
        seconds, cpu_seconds = (f"{line.figures[name]:,.1f}" for name in ("seconds", "cpu_seconds"))
        table.add_row(line.title, seconds, *(_whole(line.figures[name]) for name in names), cpu_seconds)
    return table


def is_outage(line: Line) -> bool:
    return "moved_p50_ms" in line.figures


def outage_table_of(lines: list[Line], title: str) -> Table:
    """How long a partition takes no writes."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what happens to one node of three", no_wrap=True)
    for heading in ("its partitions\np50, ms", "\np99, ms", "the others\np50, ms", "\np99, ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note", no_wrap=True)
    for line in lines:
        names = ("moved_p50_ms", "moved_p99_ms", "others_p50_ms", "others_p99_ms")
        table.add_row(line.title, *(_whole(line.figures[name]) for name in names), line.note)
    return table


def _whole(value: float | None, times: float = 1) -> str:
    return "" if value is None else f"{value * times:,.0f}"


def as_data(lines: list[Line]) -> list[dict[str, Any]]:
    return [asdict(line) for line in lines]
