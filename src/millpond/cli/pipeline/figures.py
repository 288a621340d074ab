"""The table of a pipeline, for `run` and `status`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millpond.cli.terminal import empty_table
from millpond.cli.text import NOTHING
from millpond.cli.times import now_ms, show_span

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from millpond.spark.pipelines.progress import JobFigures, Snapshot

COLUMNS: Final = ("Job", "State", "Batch", "In/s", "Done/s", "Lag", "Took", "Rows out", "Bad")
WORDS: Final = 2
"""The first columns hold words; the others hold numbers."""

JUST_NOW_MS: Final = 5000

COLOURS: Final = {
    "starting": "cyan",
    "running": "green",
    "waiting": "green dim",
    "finished": "green",
    "stopping": "yellow",
    "stopped": "yellow",
    "failed": "bold red",
    "dead": "bold red",
}


def cells(job: JobFigures) -> tuple[str, ...]:
    """One job's row."""
    return (
        job.name,
        job.state,
        NOTHING if job.batch is None else f"{job.batch:,}",
        rate(job.input_per_second),
        rate(job.done_per_second),
        count(job.lag),
        NOTHING if job.batch_ms is None else show_span(job.batch_ms),
        count(job.rows_out),
        count(job.bad),
    )


def rate(per_second: float | None) -> str:
    if per_second is None:
        return NOTHING
    return f"{per_second:,.1f}" if 0 < per_second < 10 else f"{per_second:,.0f}"


def count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def line(job: JobFigures) -> str:
    """One job in a line, for a file of lines."""
    shown = dict(zip(COLUMNS, cells(job), strict=True))
    fields = (
        f"{name.lower().replace(' ', '_')}={text}" for name, text in list(shown.items())[WORDS:] if text != NOTHING
    )
    return "  ".join([f"{job.name}: {job.state}", *fields, *(f"{name}={text}" for name, text in extras(job))])


def extras(job: JobFigures) -> Iterator[tuple[str, str]]:
    """Figures that only some jobs have."""
    if job.late:
        yield "late", count(job.late)
    if job.state_rows is not None:
        yield "state", count(job.state_rows)
    for name, figure in job.figures.items():
        if figure == 0:
            continue
        yield name.replace("_", " "), count(figure) if isinstance(figure, int) else str(figure)


def drawn(snapshot: Snapshot, condition: str | None = None) -> RenderableType:
    """The whole pipeline in a box, for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    condition = condition or snapshot.state
    parts: list[RenderableType] = [_table(snapshot)]
    for job in snapshot.jobs:
        more = "  ".join(f"{name} {text}" for name, text in extras(job))
        if more:
            parts.append(Text.assemble((f"{job.name}: ", "dim"), more))
    letters = ", ".join(f"{topic} +{number:,}" for topic, number in snapshot.dead_letters.items() if number)
    if letters:
        parts.append(Text.assemble(("dead letters: ", "dim"), (letters, "yellow")))
    if snapshot.error:
        parts.append(Text(snapshot.error, "red"))
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        border_style="dim",
        title=_title(snapshot, condition),
        title_align="left",
        subtitle=_subtitle(snapshot),
        subtitle_align="right",
        expand=False,
    )


def _title(snapshot: Snapshot, condition: str) -> Text:
    from rich.text import Text

    colour = COLOURS.get(condition, "")
    is_over = condition in ("stopped", "failed", "finished", "dead")
    at_ms = now_ms()
    lasted = show_span(max(0, (snapshot.at_ms if is_over else at_ms) - snapshot.started_ms))
    parts = [(snapshot.name, "bold not dim"), (" ● ", f"{colour} not dim"), (condition, f"{colour} not dim")]
    parts.append((f" {'after ' if is_over else ''}{lasted}", "dim"))
    if is_over and at_ms - snapshot.at_ms > JUST_NOW_MS:
        parts.append((f", {show_span(at_ms - snapshot.at_ms)} ago", "dim"))
    return Text.assemble(*parts)


def _subtitle(snapshot: Snapshot) -> Text | None:
    from rich.text import Text

    parts = [f"reads {snapshot.source}"] if snapshot.source else []
    parts += [f"on {snapshot.master}"] if snapshot.master else []
    return Text(" ".join(parts), "dim") if parts else None


def _table(snapshot: Snapshot) -> Table:
    from rich.text import Text

    table = empty_table(COLUMNS, COLUMNS[:WORDS], no_wrap=True)
    for job in snapshot.jobs:
        row = [Text(cell) for cell in cells(job)]
        row[1].stylize(COLOURS.get(job.state, ""))
        if job.lag:
            row[5].stylize("yellow")
        if job.bad:
            row[8].stylize("red")
        table.add_row(*row)
    return table


def utc_clock(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at_ms / 1000))
