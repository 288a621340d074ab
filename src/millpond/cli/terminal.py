"""Tables, boxes, progress bars and questions on a terminal; plain lines in a pipe.

rich is imported when something is drawn, so that other commands start without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import click

from millpond.cli.text import can_show

if TYPE_CHECKING:
    from rich.table import Table

Cell = str | int

Row = tuple[str, str]
"""A name and its value; a row without a name is a gap or a full line."""


def print_json(value: object, *, indent: int | None = 2) -> None:
    import json

    click.echo(json.dumps(value, indent=indent))


def print_list(
    listed: Sequence[object],
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    as_json: bool,
    otherwise: str,
    words: int = 1,
) -> None:
    """Prints a list: as JSON, as a table, or if it is empty as a sentence on standard error."""
    if as_json:
        print_json(listed)
    elif rows:
        print_table(columns, rows, words=words)
    else:
        click.echo(otherwise, err=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, words: int = 1) -> None:
    """The first `words` columns are left-aligned; the others hold numbers and are right-aligned."""
    if sys.stdout.isatty():
        _draw(columns, rows, words)
        return
    for line in aligned(columns, rows, words):
        click.echo(line)


def aligned(columns: Sequence[str], rows: Sequence[Sequence[Cell]], words: int) -> Iterator[str]:
    """The lines of a plain table."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    for row in cells:
        parts = [
            cell.ljust(width) if at < words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(parts).rstrip()


def _draw(columns: Sequence[str], rows: Sequence[Sequence[Cell]], words: int) -> None:
    from rich.console import Console

    table = empty_table(columns, columns[:words])
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in row))
    console = Console(highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    # rich adds empty lines around the box; the caller decides about gaps.
    click.echo("\n".join(line for line in captured.get().splitlines() if line.strip()))


def empty_table(columns: Sequence[str], words: Sequence[str], *, no_wrap: bool = False) -> Table:
    """A table in the common style; the columns of `words` are left-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="left" if name in words else "right",
            overflow="ellipsis" if no_wrap else "fold",
            no_wrap=no_wrap,
        )
    return table


def panel(title: str, rows: Sequence[Row], out: TextIO | None = None) -> str:
    """The rows under a title, as `out` can show them. Drawn without rich, so that a node starts quickly."""
    out = out or sys.stdout
    name_width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{name:<{name_width}}  {text}".rstrip() for name, text in rows]
    if not out.isatty() or not can_show("╭─│╰", out):
        return "\n".join([title, *filter(None, lines)])
    from shutil import get_terminal_size

    width = max(len(title) + 2, *(len(line) for line in lines))
    if width + 4 > get_terminal_size().columns:
        # A line that wraps would break the box.
        return "\n".join([title, *lines])
    top = f"╭─ \x1b[1m{title}\x1b[0m " + "─" * (width - len(title) - 1) + "╮"
    body = [f"│ {line}{' ' * (width - len(line))} │" for line in lines]
    return "\n".join([top, *body, "╰" + "─" * (width + 2) + "╯"])


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number done. The bar is shown on standard error, on a terminal only."""
    if not sys.stderr.isatty() or not total:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    left = TimeRemainingColumn(elapsed_when_finished=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


def confirm(question: str, *, yes: bool, to_do: str) -> None:
    """Asks before something is lost, unless --yes is given. `to_do` says what --yes does: "reset without asking"."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"There is no terminal to ask on: add --yes to {to_do}.")
    click.confirm(question, abort=True)
