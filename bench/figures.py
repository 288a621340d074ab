"""Figures of earlier runs, stored in the repository with their machine, and comparisons with them.

A file of `bench/figures` belongs to one kind of machine, and to either short or full slices. Each row in it has the
machine's limits from the same run, which scale what is expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.limits import Machine
from bench.line import Line, Row
from bench.noise import (
    NOISE_LEAST,
    SPREAD,
    Measured,
    Verdict,
    limit_of,
    noise_of,
    pace_of,
    times_worse,
    verdict_of,
)

FOLDER = Path(__file__).with_name("figures")
PACE_RANGE = (0.25, 4.0)
"""Outside of this range it is considered another machine."""


class NoFigures(Exception):
    """There are no stored figures; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored figures of one row."""

    floor: Measured
    load: float
    lines: dict[str, Measured]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one line, compared with the stored one."""

    row: str
    title: str
    name: str
    then: float
    now: float
    pace: float
    """The machine's speed relative to the stored run."""
    worse: float
    """How many times worse the figure is, scaled by `pace`."""
    noise: float
    verdict: Verdict

    def text(self) -> str:
        return (
            f"{self.row}: {self.title}: {self.name} was {self.then:.4g}, is {self.now:.4g}; the machine has "
            f"x{self.pace:.2f} of its pace, so that is x{self.worse:.2f} (noise {self.noise:.0%})"
        )


def compare(row: Row, stored: Stored, lines: Sequence[Line], floor: Mapping[str, float]) -> list[Compared]:
    """Every figure of the row that both runs have."""
    return [
        _compared(row, line, name, before, stored.floor, floor)
        for line in lines
        if (before := stored.lines.get(line.title))
        for name in NOISE_LEAST
        if name in before and name in line.figures
    ]


def _compared(
    row: Row, line: Line, name: str, before: Measured, floor_then: Measured, floor_now: Mapping[str, float]
) -> Compared:
    limit = limit_of(name, row.bound)
    pace, unrest = 1.0, 0.0
    if limit is not None:
        pace = pace_of(limit, floor_then, floor_now)
        unrest = floor_then.get(limit + SPREAD, 0.0) + floor_now.get(limit + SPREAD, 0.0)
    then, now = before[name], line.figures[name]
    # Scaled to the machine's speed in the stored run.
    worse = times_worse(name, now, then) * pace
    noise = noise_of(name, before, line.figures, {name + SPREAD: unrest})
    verdict = verdict_of(worse, noise) if PACE_RANGE[0] <= pace <= PACE_RANGE[1] else Verdict.UNCLEAR
    return Compared(row.name, line.title, name, then, now, pace, worse, noise, verdict)


def missing_titles(stored: Stored, lines: Sequence[Line]) -> list[str]:
    """Stored lines that were not measured now."""
    measured = {line.title for line in lines if line.figures}
    return [title for title in stored.lines if title not in measured]


class Figures:
    """All stored rows of one kind of machine."""

    def __init__(self, machine: Machine, quick: bool, rows: dict[str, Stored] | None = None) -> None:
        self.machine = machine
        self.quick = quick
        self.rows = rows or {}

    @classmethod
    def read(cls, path: Path) -> Figures:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            rows = {name: Stored(**row) for name, row in data["rows"].items()}
            return cls(Machine(**data["machine"]), bool(data["quick"]), rows)
        except FileNotFoundError as missing:
            raise NoFigures(f"there is no file {path}; --store writes one") from missing
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            raise NoFigures(f"{path} is no file of figures ({fault!r}); --store writes one anew") from fault

    def write(self, path: Path) -> None:
        rows = {
            name: {
                "floor": _short(row.floor),
                "load": round(row.load, 2),
                "lines": {title: _short(each) for title, each in row.lines.items()},
            }
            for name, row in sorted(self.rows.items())
        }
        data: dict[str, Any] = {"machine": self.machine.data(), "quick": self.quick, "rows": rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    def take(self, row: str, lines: Sequence[Line], floor: Mapping[str, float], load: float) -> None:
        """Store the comparable figures of a row, if it has any."""
        kept = {line.title: figures for line in lines if (figures := comparable(line.figures))}
        if kept:
            self.rows[row] = Stored(dict(floor), load, kept)


def comparable(figures: Mapping[str, float]) -> Measured:
    return {
        name + ending: figures[name + ending]
        for name in NOISE_LEAST
        for ending in ("", SPREAD)
        if name in figures and name + ending in figures
    }


def path_of(machine: Machine, quick: bool, folder: Path = FOLDER) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", machine.cpu.lower()).strip("-")
    return folder / f"{words}-{machine.cores}{'-quick' if quick else ''}.json"


def figures_for(machine: Machine, quick: bool, named: str | Path | None = None, folder: Path = FOLDER) -> Figures:
    """The stored figures of this machine, or of the file that is named."""
    path = Path(named) if named else path_of(machine, quick, folder)
    if not named and not path.exists():
        known = ", ".join(sorted(each.name for each in folder.glob("*.json"))) or "none"
        raise NoFigures(
            f"no figures of this machine ({machine.text()}){' with --quick' if quick else ''} are stored; there are: "
            f"{known}. --store stores new ones, --figures FILE compares with those of another machine"
        )
    found = Figures.read(path)
    if found.quick != quick:
        asked, stored = ("with", "without") if quick else ("without", "with")
        raise NoFigures(f"{path} has figures {stored} --quick, this run is {asked}: their sizes differ")
    return found


def _short(figures: Mapping[str, float]) -> Measured:
    return {name: float(f"{value:.5g}") for name, value in figures.items()}
