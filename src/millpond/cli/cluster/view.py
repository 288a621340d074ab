"""Shows a cluster: a live table of its nodes on a terminal, lines of changes in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import click

from millpond.cli.terminal import empty_table
from millpond.cli.text import NOTHING, safe

if TYPE_CHECKING:
    from rich.console import RenderableType

    from millpond.admin.nodes import ClusterFacts, NodeFacts
    from millpond.base.ids import TopicPartition

COLUMNS: Final = ("Node", "Address", "State", "Leads", "In sync", "Behind")
NAMES_MAX: Final = 3
"""At most this many partitions are named; the others are counted."""

COLOURS: Final = {"starting": "cyan", "ready": "green", "ended": "bold red", "stopped": "yellow", "away": "bold red"}


def row(node: NodeFacts, state: str | None = None, pid: int | None = None) -> tuple[str, ...]:
    """One node's cells; `state` and `pid` come from the command that runs it, if any."""
    if state is None:
        state = "away" if node.address is None else "ready"
    held = node.without_internal
    words = [state, "controller" if node.is_controller and state == "ready" else "", f"pid {pid}" if pid else ""]
    return (
        str(node.node_id),
        node.address or NOTHING,
        ", ".join(filter(None, words)),
        f"{held.leads:,}",
        f"{held.in_sync:,} of {held.replicas:,}",
        named(node.behind),
    )


def named(partitions: Sequence[TopicPartition]) -> str:
    """Names the first few and counts the others."""
    if not partitions:
        return NOTHING
    names = ", ".join(f"{safe(topic, in_line=True)}-{index}" for topic, index in partitions[:NAMES_MAX])
    more = len(partitions) - NAMES_MAX
    return f"{names} and {more:,} more" if more > 0 else names


def warnings(facts: ClusterFacts) -> Iterator[str]:
    if facts.leaderless:
        yield f"without a leader: {named(facts.leaderless)}"


class View(Protocol):
    def say(self, text: str) -> None:
        """Prints a line."""

    def show(self, rows: Sequence[tuple[str, ...]], notes: Sequence[str]) -> None:
        """Shows the current state."""


class Lines:
    """For a pipe: a line for each node whose row has changed."""

    def __init__(self) -> None:
        self._rows: Mapping[str, tuple[str, ...]] = {}
        self._notes: Sequence[str] = ()

    def say(self, text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')}  {text}")

    def show(self, rows: Sequence[tuple[str, ...]], notes: Sequence[str]) -> None:
        for cells in rows:
            if self._rows.get(cells[0]) != cells:
                node_id, _, state, leads, in_sync, behind = cells
                rest = "" if behind == NOTHING else f", behind with {behind}"
                self.say(f"node {node_id}  {state}: leads {leads}, in sync {in_sync}{rest}")
        for note in notes:
            if note not in self._notes:
                self.say(note)
        self._rows = {cells[0]: cells for cells in rows}
        self._notes = tuple(notes)


@contextmanager
def live_table() -> Iterator[View]:
    """For a terminal: the table stays at the bottom, lines go above it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    with Live(Text(""), console=console, auto_refresh=False, transient=True) as live:

        class OnScreen:
            def say(self, text: str) -> None:
                console.print(f"{time.strftime('%H:%M:%S')}  {text}")

            def show(self, rows: Sequence[tuple[str, ...]], notes: Sequence[str]) -> None:
                live.update(_drawn(rows, notes), refresh=True)

        yield OnScreen()


def _drawn(rows: Sequence[tuple[str, ...]], notes: Sequence[str]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    table = empty_table(COLUMNS, [name for name in COLUMNS if name not in ("Leads", "In sync")])
    for cells in rows:
        colour = COLOURS.get(cells[2].split(",")[0].split(" ")[0], "")
        table.add_row(*(Text(cell, style=colour if at == 2 else "") for at, cell in enumerate(cells)))
    lines = [Text(note, style="bold red") for note in notes]
    # Leaves space for the ^C that the terminal prints.
    return Group(Text(""), table, *lines, Text("    Ctrl-C stops all", style="dim"))
