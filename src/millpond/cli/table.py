"""Tables: drawn by rich on a terminal, aligned plain columns for everything that reads a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

Cell = str | int


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, words: int = 1) -> None:
    """The first `words` columns hold words and stand left; the others hold numbers and stand right."""
    if sys.stdout.isatty():
        _draw(columns, rows, words)
        return
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    for row in cells:
        parts = [
            cell.ljust(width) if at < words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(parts).rstrip())


def _draw(columns: Sequence[str], rows: Sequence[Sequence[Cell]], words: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    console = Console(highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    # The box brings empty lines with it; where gaps belong is for the caller to say.
    click.echo("\n".join(line for line in captured.get().splitlines() if line.strip()))


def _text(cell: Cell) -> str:
    return f"{cell:,}" if isinstance(cell, int) else cell
