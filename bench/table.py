"""The figures of a run as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from bench.crowd import HEARTBEAT_MS
from bench.line import Line
from bench.noise import MORE_IS_BETTER, Measured
from bench.rebalance import MEMBERS, PARTITIONS

AIM = 0.5
"""At least half as fast as the prototype."""

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
    """Our speed or economy relative to the prototype: 2 is twice as good, 0.5 half."""
    return ours / prototype if name in MORE_IS_BETTER else prototype / ours


def short(value: float | None) -> str:
    """A figure with about three digits."""
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
    """The prototype's figures, each with our ratio."""
    text = Text()
    for name, prototype in line.prototype.items():
        text.append("  " if text else "")
        text.append(f"{short(prototype)} {UNITS[name]}")
        if name in line.figures:
            ratio = speed_ratio(name, line.figures[name], prototype)
            text.append(f" x{ratio:.2f}", style="bold green" if ratio >= AIM else "bold red")
    return text


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


@dataclass(frozen=True, slots=True)
class Special:
    """A separate table for lines that have the first of these figures."""

    title: str
    first: str
    columns: tuple[tuple[str, str], ...]
    """Figure and heading."""
    digits: int = 0

    def has(self, line: Line) -> bool:
        return self.columns[0][0] in line.figures

    def table(self, lines: list[Line], title: str) -> Table:
        table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(self.first, no_wrap=True)
        for _, heading in self.columns:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("note", no_wrap=True)
        for line in lines:
            figures = (f"{line.figures[name]:,.{self.digits}f}" for name, _ in self.columns)
            table.add_row(line.title, *figures, line.note)
        return table


SPECIAL = (
    Special(
        f"one of {MEMBERS} consumers of {PARTITIONS} partitions is restarted, a heartbeat every {HEARTBEAT_MS} ms",
        "assignor",
        (
            ("moved", "moved\npartitions"),
            ("moved_pause_ms", "longest pause of\nthose, ms"),
            ("kept_pause_ms", "longest pause of\nothers, ms"),
            ("stable_ms", "stable\nafter ms"),
        ),
    ),
    Special(
        "how long writes stall (the longest time between two acknowledgements of a partition)",
        "event on one node of three",
        (
            ("moved_p50_ms", "its partitions\np50, ms"),
            ("moved_p99_ms", "\np99, ms"),
            ("others_p50_ms", "the others\np50, ms"),
            ("others_p99_ms", "\np99, ms"),
        ),
    ),
    Special(
        "three nodes with many partitions of three replicas",
        "operation",
        (
            ("turn_cpu_ms", "longest turn,\nCPU ms"),
            ("turn_wall_ms", "longest turn,\nms"),
            ("long_turns", "turns of more\nthan 50 CPU ms"),
            ("gc_ms", "longest garbage\ncollection, ms"),
            ("seconds", "took\ns"),
            ("cpu_seconds", "CPU of all nodes\ns"),
        ),
        digits=1,
    ),
    Special(
        "how long the event loop is blocked",
        "operation",
        (("longest_ms", "longest round trip\nof another client, ms"),),
        digits=1,
    ),
)


def _whole(value: float | None, times: float = 1) -> str:
    return "" if value is None else f"{value * times:,.0f}"


def as_data(lines: list[Line]) -> list[dict[str, Any]]:
    return [asdict(line) for line in lines]
