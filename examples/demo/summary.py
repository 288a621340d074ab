"""Compares the tables with the events that were sent, and prints the result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from morning import Truth
from rich.console import Console
from rich.table import Table


@dataclass(slots=True, frozen=True)
class Line:
    what: str
    expected: object
    found: object

    @property
    def is_right(self) -> bool:
        if isinstance(self.expected, float) and isinstance(self.found, float):
            return abs(self.expected - self.found) < 0.01
        return self.expected == self.found


def rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a table; empty before its first commit."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return found


def check(lake: Path, truth: Truth, dead_letters: int) -> list[Line]:
    archive = rows(lake / "orders")
    revenue = revenue_of(lake)
    expected_revenue = {place: round(total, 2) for place, total in truth.revenue.items()}
    current = {row["key"]: row["status"] for row in rows(lake / "current")}
    places = {(row["_topic"], row["_partition"], row["_offset"]) for row in archive}
    return [
        Line("archive: events, each once", truth.readable + truth.tombstones, len(archive)),
        Line("archive: different offsets", truth.readable + truth.tombstones, len(places)),
        Line("aggregate: windows with revenue", len(expected_revenue), len(revenue)),
        Line("aggregate: revenue", round(sum(truth.revenue.values()), 2), round(sum(revenue.values()), 2)),
        Line("aggregate: every window as it should be", True, revenue == expected_revenue),
        Line("latest: orders", len(truth.current), len(current)),
        Line("latest: every order as it should be", True, current == truth.current),
        Line("dead letters", truth.poison, dead_letters),
    ]


def revenue_of(lake: Path) -> dict[tuple[datetime, str], float]:
    return {
        (row["window_start"], row["region"]): round(row["revenue"], 2)
        for row in rows(lake / "revenue")
        if row["orders"]
    }


def show(lines: list[Line], truth: Truth, seconds: float) -> None:
    console = Console()
    table = Table(title=f"{truth.sent:,} records in {seconds:.0f} s", title_justify="left")
    table.add_column("")
    table.add_column("sent", justify="right")
    table.add_column("found", justify="right")
    table.add_column("")
    for line in lines:
        sign = "[green]✓[/]" if line.is_right else "[red]✗[/]"
        table.add_row(line.what, _shown(line.expected), _shown(line.found), sign)
    console.print(table)
    console.print(
        f"Among them: {truth.duplicates:,} sent twice, {truth.late:,} late, {truth.tombstones:,} that erase an "
        f"order, {truth.poison:,} that cannot be read."
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
