"""Races: the same load against several brokers, slices alternating, and the verdict.

Each contender is prepared once and warmed up; then all of them take turns, every other round in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from rich import box
from rich.markup import escape
from rich.table import Table

from bench.cluster import Nodes
from bench.line import LeftOut, Line, Row
from bench.measure import Plan, Slice
from bench.node import Node
from bench.noise import LOOP, SPREAD, Measured, Verdict, medians_of, noise_of, share_of_limit, times_worse, verdict_of
from bench.table import latency_text, short

OURS = "millpond"
WARM_SECONDS = 2.0
WARM_SECONDS_QUICK = 0.5


@dataclass(frozen=True, slots=True)
class Way:
    """A durability of acknowledgements, with the settings for it; contenders without such a setting are left out."""

    title: str
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Race:
    """`enter` prepares a contender that speaks Kafka's protocol; others choose their load by `name`."""

    name: str
    title: str
    enter: Callable[[ExitStack, KafkaSpeaker, Plan, Mapping[str, str]], Slice]
    ways: Sequence[Way] = (Way("as they come"),)
    bound: str = LOOP
    figure: str = "messages_per_s"
    """The figure that decides the race."""
    is_spread: bool = False
    """Its clients connect to the leaders of many partitions."""
    note: Callable[[Mapping[str, float]], str] = field(default=lambda _: "")
    """A note about the figures."""


class Contender(Protocol):
    name: str
    title: str
    warm_seconds: float
    """The warm-up time: a virtual machine compiles code after a while."""

    def runs(self, race: Race) -> bool:
        """Whether it can run this race."""
        ...

    def enter(self, stack: ExitStack, race: Race, plan: Plan, way: Way) -> Slice:
        """Prepare a slice; LeftOut says why it cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class KafkaSpeaker:
    """A contender that runs our own loads: how to create one broker, and three."""

    name: str
    title: str
    node: Callable[[Mapping[str, str]], Node]
    nodes: Callable[[Mapping[str, str]], AbstractContextManager[Nodes]] | None = None
    is_spread: bool = False
    """It consists of several processes: clients must connect to the leader of each partition."""
    warm_seconds: float = WARM_SECONDS

    def runs(self, race: Race) -> bool:
        return race.is_spread or not self.is_spread

    def enter(self, stack: ExitStack, race: Race, plan: Plan, way: Way) -> Slice:
        return race.enter(stack, self, plan, way.settings.get(self.name, {}))


@dataclass(frozen=True, slots=True)
class Placed:
    """One contender in one race."""

    race: Race
    way: Way
    contender: str
    title: str
    figures: Measured
    note: str = ""


FAILED = "failed: "
"""The prefix of the note of a contender that failed during the race."""


def in_turn(plan: Plan, slices: Mapping[str, Slice], broken: dict[str, str] | None = None) -> dict[str, Measured]:
    """The medians of each with their spreads. Every other round is in reverse.

    A contender that fails is added to `broken` and not run again; without `broken` its error is raised.
    """
    found: dict[str, list[Measured]] = {name: [] for name in slices}
    for number in range(plan.slices):
        order = list(slices) if number % 2 == 0 else list(reversed(slices))
        for name in order:
            if broken is not None and name in broken:
                continue
            try:
                found[name].append(slices[name](plan.slice_seconds))
            except (RuntimeError, OSError) as error:
                if broken is None:
                    raise
                broken[name] = f"{FAILED}{error}"
    return {name: medians_of(each) for name, each in found.items() if name not in (broken or {})}


def _warm_up(one: Slice, plan: Plan, seconds: float) -> None:
    left = WARM_SECONDS_QUICK if plan.quick else seconds
    while left > 0:
        # A slice may be limited by bytes instead of time.
        left -= max(one(min(left, plan.slice_seconds))["seconds"], plan.slice_seconds / 4)


def run_race(race: Race, way: Way, contenders: Sequence[Contender], plan: Plan) -> list[Placed]:
    """All contenders are up at the same time, and one of them works."""
    slices: dict[str, Slice] = {}
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        entered = [each for each in contenders if each.runs(race)]
        for each in entered:
            try:
                if each.name in way.unable:
                    raise LeftOut(way.unable[each.name])
                slices[each.name] = each.enter(stack, race, plan, way)
                _warm_up(slices[each.name], plan, each.warm_seconds)
            except LeftOut as reason:
                left_out[each.name] = str(reason)
            except (RuntimeError, OSError) as error:
                slices.pop(each.name, None)
                left_out[each.name] = f"{FAILED}{error}"
        measured = in_turn(plan, slices, left_out)
    return [
        Placed(race, way, each.name, each.title, measured.get(each.name, {}), left_out.get(each.name, ""))
        for each in entered
    ]


def row_of(race: Race, ours: Contender) -> Row:
    """A race without other contenders, as a row of the table."""

    def run(plan: Plan) -> list[Line]:
        with ExitStack() as stack:
            measured = in_turn(plan, {ours.name: ours.enter(stack, race, plan, race.ways[0])})
        return [Line(race.title, measured[ours.name], note=race.note(measured[ours.name]))]

    return Row(race.name, run, race.bound)


@dataclass(frozen=True, slots=True)
class Standing:
    """Our result relative to another contender's: the ratio, and whether it exceeds the noise."""

    speed: float
    cpu: float | None
    verdict: Verdict


def standing_of(race: Race, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Standing | None:
    """None if one of the two has no figure."""
    name = race.figure
    if name not in ours or name not in theirs:
        return None
    worse = times_worse(name, ours[name], theirs[name])
    cpu = None
    for unit in ("cpu_s_per_million", "us_per_request", "cpu_s_per_gb"):
        if ours.get(unit) and theirs.get(unit):
            cpu = ours[unit] / theirs[unit]
            break
    return Standing(1 / worse, cpu, verdict_of(worse, noise_of(name, ours, theirs)))


WORDS = {Verdict.BETTER: "ahead", Verdict.EVEN: "even", Verdict.WORSE: "behind", Verdict.UNCLEAR: ""}
STYLES = {Verdict.BETTER: "green", Verdict.EVEN: "", Verdict.WORSE: "bold red", Verdict.UNCLEAR: ""}


def race_table_of(placed: Sequence[Placed], floor: Mapping[str, float], title: str) -> Table:
    """A heading for each race, followed by a line for each contender."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("row, and who", no_wrap=True, min_width=24)
    for heading in ("msg/s", "MB/s", "±", "p50 / p99 / p99.9\nms", "CPU s\n/M msg", "core\n%", "RSS\nMB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("of the\nmachine", "we are", "our CPU"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict, or why it is left out", no_wrap=True)
    ours: Placed | None = None
    for each in placed:
        if each.contender == OURS:
            ours = each
            table.add_row(f"[bold]{each.race.title}[/], {each.way.title}")
        table.add_row(*_cells(each, ours, floor))
    return table


def _cells(each: Placed, ours: Placed | None, floor: Mapping[str, float]) -> list[str]:
    figures, race = each.figures, each.race
    is_first = each.contender == OURS
    share = share_of_limit(race.bound, figures, floor)
    standing = None if is_first or ours is None else standing_of(race, ours.figures, figures)
    verdict = race.note(figures)
    if each.note:
        # An error may have several lines, and brackets.
        reason = escape(each.note.partition("\n")[0])
        verdict = reason if each.note.startswith(FAILED) else f"left out: {reason}"
    if standing is not None:
        style, word = STYLES[standing.verdict], WORDS[standing.verdict]
        verdict = f"{f'[{style}]{word}[/]' if style else word}  {verdict}".strip()
    spread = figures.get(race.figure + SPREAD)
    return [
        f"  {each.title}",
        short(figures.get("messages_per_s")),
        short(figures.get("mb_per_s")),
        "" if spread is None else f"{spread:.0%}",
        latency_text(figures),
        short(figures.get("cpu_s_per_million")),
        "" if "core_share" not in figures else f"{figures['core_share'] * 100:.0f}",
        short(figures.get("resident_mb")),
        "" if share is None else f"{share:.0%}",
        "" if standing is None else f"x{standing.speed:.2f}",
        "" if standing is None or standing.cpu is None else f"x{standing.cpu:.2f}",
        verdict,
    ]


def race_data(placed: Sequence[Placed]) -> list[dict[str, object]]:
    return [
        {
            "row": each.race.name,
            "title": each.race.title,
            "durability": each.way.title,
            "who": each.title,
            "figures": each.figures,
            "note": each.note,
        }
        for each in placed
    ]
