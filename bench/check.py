"""`--check` compares a run with the stored figures; `--store` stores one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.table import Table

from bench.figures import Compared, Figures, NoFigures, Stored, compare, missing_titles
from bench.line import Line, Row
from bench.noise import Measured, Verdict

Again = Callable[[Row], tuple[list[Line], Measured]]
"""Measures a row once more, and the machine's limits."""

STYLES = {
    Verdict.BETTER: "bold green",
    Verdict.EVEN: "",
    Verdict.WORSE: "bold red",
    Verdict.UNCLEAR: "yellow",
}


@dataclass(slots=True)
class Checked:
    """The result of a check."""

    figures: list[Compared] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def slower(self) -> list[Compared]:
        return [each for each in self.figures if each.verdict is Verdict.WORSE]


def rows_to_check(rows: Sequence[Row], stored: Figures, asked: Sequence[str] | None) -> list[Row]:
    """The rows with stored figures; NoFigures if a selected row has none."""
    unknown = [name for name in asked or () if name not in stored.rows]
    if unknown:
        raise NoFigures(f"no figures of {', '.join(unknown)} are stored; --store --only ROW stores them")
    found = [row for row in rows if row.name in stored.rows and (not asked or row.name in asked)]
    if not found:
        raise NoFigures("the file of figures has no row that is measured any more; --store stores new ones")
    return found


def check(
    rows: Sequence[Row], measured: Mapping[str, list[Line]], floor: Measured, stored: Figures, again: Again
) -> Checked:
    """A row is slower if it was slower twice: the machine may have been busy once."""
    found = Checked()
    for row in rows:
        before, lines = stored.rows[row.name], measured[row.name]
        compared = compare(row, before, lines, floor)
        if any(each.verdict is Verdict.WORSE for each in compared):
            lines, floor_again = again(row)
            compared = better_of(compared, compare(row, before, lines, floor_again))
        found.figures += compared
        found.remarks += _remarks(row, before, lines, compared)
    return found


def better_of(first: Sequence[Compared], second: Sequence[Compared]) -> list[Compared]:
    """The better of both runs for each figure that both have."""
    by_name = {(each.title, each.name): each for each in second}
    return [min(each, by_name.get((each.title, each.name), each), key=lambda one: one.worse) for each in first]


def _remarks(row: Row, before: Stored, lines: Sequence[Line], compared: Sequence[Compared]) -> list[str]:
    remarks = [f"{row.name}: {title!r} is stored and was not measured" for title in missing_titles(before, lines)]
    unclear = next((each for each in compared if each.verdict is Verdict.UNCLEAR), None)
    if unclear is not None:
        remarks.append(f"{row.name}: not compared, the machine has x{unclear.pace:.2f} of its pace of then")
    return remarks


def store(figures: Figures, measured: Mapping[str, list[Line]], floor: Measured) -> None:
    load = os.getloadavg()[0]
    for row, lines in measured.items():
        figures.take(row, lines, floor, load)


def check_table_of(checked: Checked, title: str) -> Table:
    """The worst figure of each line."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "line", "figure"):
        table.add_column(heading, no_wrap=True)
    for heading in ("stored", "now", "machine's pace", "times worse", "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    worst: dict[tuple[str, str], Compared] = {}
    for each in checked.figures:
        known = worst.get((each.row, each.title))
        if known is None or each.worse / (1 + each.noise) > known.worse / (1 + known.noise):
            worst[each.row, each.title] = each
    for each in worst.values():
        table.add_row(
            each.row,
            each.title,
            each.name,
            f"{each.then:.4g}",
            f"{each.now:.4g}",
            f"x{each.pace:.2f}",
            f"x{each.worse:.2f}",
            f"{each.noise:.0%}",
            each.verdict,
            style=STYLES[each.verdict],
        )
    return table
