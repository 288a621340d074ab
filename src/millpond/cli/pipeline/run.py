"""`millpond pipeline run`: a run, shown as a live table, as lines, or as JSON."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from millpond.cli.errors import Failed
from millpond.cli.pipeline.figures import drawn, line, utc_clock
from millpond.cli.pipeline.file import Wrong, sentence
from millpond.cli.terminal import print_json, print_table
from millpond.cli.text import counted
from millpond.cli.times import show_span
from millpond.spark.pipelines.declaration import DeclarationError, Pipeline
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.lock import AlreadyRunning
from millpond.spark.pipelines.progress import Snapshot
from millpond.spark.pipelines.runner import PipelineFailed, Show, run
from millpond.spark.pipelines.session import SessionError
from millpond.spark.pipelines.status import note_folder
from millpond.spark.pipelines.tables import HOME

if TYPE_CHECKING:
    from rich.console import RenderableType

Style = Literal["auto", "json", "quiet"]

LINES_EVERY_SECONDS: Final = 10.0
JSON_EVERY_SECONDS: Final = 1.0


def run_pipeline(pipeline: Pipeline, style: Style, every_seconds: float | None, **how: Any) -> None:
    """Runs it (`how` is passed to `runner.run`) and turns every failure into a sentence and an exit code."""
    # Spark starts its workers with `python -m`: a module planted in the current directory must not run in them,
    # whatever Python they use.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    with contextlib.suppress(OSError):
        note_folder(Path(HOME), pipeline.name, pipeline.folder)
    try:
        with _showing(style, every_seconds) as show:
            outcome = run(pipeline, show=show, **how)
    except PipelineFailed as fault:
        log = fault.snapshot.log
        where = f"\nSpark's log is in {log}" if log else ""
        raise Failed(f"{sentence(str(fault))}{where}") from None
    except DeclarationError as fault:
        raise Wrong(sentence(str(fault))) from None
    except (SessionError, AlreadyRunning) as fault:
        raise Failed(sentence(str(fault))) from None
    if style != "json":
        click.echo(last_words(outcome.snapshot))
        print_findings(pipeline)


def last_words(snapshot: Snapshot) -> str:
    """The outcome, in a sentence."""
    lasted = show_span(snapshot.at_ms - snapshot.started_ms)
    rows = sum(job.rows_in for job in snapshot.jobs)
    read = f"{counted(rows, 'row')} read"
    bad = "".join(f"\n{each}" for each in bad_words(snapshot))
    if snapshot.state == "finished":
        return f"{snapshot.name} is done after {lasted}: {read}.{bad}"
    return f"{snapshot.name} stopped after {lasted}: {read}. The next run continues from here.{bad}"


def bad_words(snapshot: Snapshot) -> Iterator[str]:
    """The number of bad records, and where they went."""
    for topic, number in snapshot.dead_letters.items():
        if number:
            are = "is" if number == 1 else "are"
            yield f"{counted(number, 'bad record')} {are} in {topic}: see `millpond dlq show {topic}`."
    if not any(snapshot.dead_letters.values()):
        for job in snapshot.jobs:
            if job.bad:
                yield f"{job.name} left out {counted(job.bad, 'bad record')}."


def print_findings(pipeline: Pipeline) -> None:
    """Results of jobs that only inspect."""
    for job in pipeline.jobs:
        ask = kind_of(job).findings
        for report in ask(pipeline, job) if ask is not None else ():
            for title, columns, rows, words in report.tables():
                click.echo(f"\n{title}")
                print_table(columns, rows, words=words)
            click.echo(f"\n{report.advice}")


@contextmanager
def _showing(style: Style, every_seconds: float | None) -> Iterator[Show | None]:
    if style == "quiet":
        yield None
    elif style == "json":
        yield _Lines(every_seconds or JSON_EVERY_SECONDS, as_json=True).show
    elif not sys.stdout.isatty():
        yield _Lines(every_seconds or LINES_EVERY_SECONDS, as_json=False).show
    else:
        with _live() as show:
            yield show


class _Lines:
    """Prints changes of state at once, and everything at intervals."""

    def __init__(self, every_seconds: float, *, as_json: bool) -> None:
        self._every_seconds = every_seconds
        self._as_json = as_json
        self._shown_at = 0.0
        self._states: dict[str, str] = {}

    def show(self, snapshot: Snapshot) -> None:
        states = {job.name: _coarse(job.state) for job in snapshot.jobs} | {"": snapshot.state}
        is_due = time.monotonic() - self._shown_at >= self._every_seconds
        if not is_due and states == self._states:
            return
        changed = {name for name, state in states.items() if self._states.get(name) != state}
        if snapshot.state == "starting" and "" not in changed:
            return
        if is_due or "" in changed:
            self._shown_at = time.monotonic()
            changed |= states.keys()
        self._states = states
        if self._as_json:
            print_json(snapshot.as_object(), indent=None)
        else:
            self._print(snapshot, changed)
        sys.stdout.flush()

    def _print(self, snapshot: Snapshot, changed: set[str]) -> None:
        clock = utc_clock(snapshot.at_ms)
        if snapshot.state == "starting":
            where = f", metrics at {snapshot.metrics}" if snapshot.metrics else ""
            click.echo(f"{clock}  {snapshot.name}: starting Spark on {snapshot.master}{where}")
            return
        for job in snapshot.jobs:
            if job.name in changed:
                click.echo(f"{clock}  {line(job)}")


def _coarse(state: str) -> str:
    """A job that alternates between waiting and running has not changed its state."""
    return "running" if state in ("waiting", "running") else state


@contextmanager
def _live() -> Iterator[Show]:
    from rich.console import Console
    from rich.live import Live

    screen = _Screen()
    with Live(screen, console=Console(highlight=False), refresh_per_second=4) as live:
        yield screen.take
        live.update(screen, refresh=True)


class _Screen:
    """The current screen; drawn a few times a second, so that the clock advances between two updates."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._spinner: Any = None

    def take(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        snapshot = self._snapshot
        if snapshot is None:
            return Text("")
        if snapshot.state == "starting" and all(job.batch is None for job in snapshot.jobs):
            self._spinner = self._spinner or Spinner(
                "dots", Text(f"{snapshot.name}: starting Spark on {snapshot.master} …")
            )
            return Group(self._spinner, _foot(snapshot))
        return Group(drawn(snapshot), _foot(snapshot))


def _foot(snapshot: Snapshot) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    parts = []
    if snapshot.state in ("starting", "running"):
        parts.append("Ctrl-C stops")
    if snapshot.state == "stopping":
        parts.append("finishing the current batch; Ctrl-C again to stop at once")
    if snapshot.metrics:
        parts.append(f"metrics {snapshot.metrics}")
    if snapshot.log:
        parts.append(f"log {_near(snapshot.log)}")
    # Leaves space for the ^C that the terminal prints: a full line would wrap and shift the table.
    return Padding(Text(" · ".join(parts), style="dim", no_wrap=True, overflow="ellipsis"), (0, 4, 0, 2))


def _near(path: str) -> str:
    """Relative to the current directory, if that is shorter."""
    return min(os.path.relpath(path), path, key=len)
