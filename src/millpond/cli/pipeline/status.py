"""`millpond pipeline status`: running and past pipelines, from the files that runs leave."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, Final

import click

from millpond.base.names import nearest
from millpond.cli.errors import Failed
from millpond.cli.pipeline.figures import COLUMNS, WORDS, cells, drawn, extras
from millpond.cli.pipeline.file import load
from millpond.cli.stop import Stop, stop_on
from millpond.cli.terminal import print_json, print_table
from millpond.cli.times import show_span
from millpond.spark.pipelines.status import Status, find_statuses, read_status
from millpond.spark.pipelines.tables import HOME

WATCH_SECONDS: Final = 1.0


def show_statuses(what: str | None, *, as_json: bool, watch: bool) -> None:
    statuses = select_statuses(what)
    if not watch:
        _show(statuses, as_json=as_json)
        return
    with stop_on(signal.SIGINT) as stop:
        if as_json or not sys.stdout.isatty():
            _watch_lines(what, stop, as_json=as_json)
        else:
            _watch_screen(what, stop)


def select_statuses(what: str | None) -> list[Status]:
    """The requested pipelines."""
    if what is None:
        statuses = [status for _, status in find_statuses(Path(HOME))]
        if not statuses:
            raise Failed(f"No pipeline has run here: there is none in {HOME}. Name a file, or a folder of pipelines.")
        return statuses
    folder = Path(what)
    if folder.is_dir():
        one = read_status(folder)
        statuses = [one] if one is not None else [status for _, status in find_statuses(folder)]
        if not statuses:
            raise Failed(f"No pipeline has run in {folder}: there is no status in it.")
        return statuses
    if folder.is_file() or what.endswith(".toml"):
        pipeline = load(folder)
        status = read_status(pipeline.folder)
        if status is None:
            raise Failed(f"{pipeline.name} has not run yet: start it with `millpond pipeline run {what}`.")
        return [status]
    by_name = {status.snapshot.name: status for _, status in find_statuses(Path(HOME))}
    status = read_status(Path(HOME) / what) or by_name.get(what)
    if status is None:
        raise Failed(f"There is no pipeline {what} in {HOME}{nearest(what, by_name)}")
    return [status]


def as_object(status: Status) -> dict[str, Any]:
    return {"condition": status.condition} | status.snapshot.as_object()


def _show(statuses: list[Status], *, as_json: bool) -> None:
    if as_json:
        print_json([as_object(each) for each in statuses])
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        for number, each in enumerate(statuses):
            if number:
                console.print()
            console.print(drawn(each.snapshot, each.condition))
    else:
        _print_plain(statuses)


def _print_plain(statuses: list[Status]) -> None:
    rows = [(each.snapshot.name, each.condition, *cells(job)) for each in statuses for job in each.snapshot.jobs]
    print_table(("Pipeline", "Condition", *COLUMNS), rows, words=2 + WORDS)
    for each in statuses:
        for job in each.snapshot.jobs:
            more = "  ".join(f"{name} {text}" for name, text in extras(job))
            if more:
                click.echo(f"{each.snapshot.name}, {job.name}: {more}")
        if each.snapshot.error:
            click.echo(f"{each.snapshot.name}: {each.snapshot.error}")


def _watch_lines(what: str | None, stop: Stop, *, as_json: bool) -> None:
    while not stop.is_requested:
        statuses = select_statuses(what)
        if as_json:
            print_json([as_object(each) for each in statuses], indent=None)
        else:
            _print_plain(statuses)
            click.echo()
        sys.stdout.flush()
        stop.wait(WATCH_SECONDS)


def _watch_screen(what: str | None, stop: Stop) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while not stop.is_requested:
            parts: list[Any] = []
            for each in select_statuses(what):
                parts += [drawn(each.snapshot, each.condition), Text("")]
            foot = Text(f"  every {show_span(WATCH_SECONDS * 1000)} · Ctrl-C ends", style="dim")
            live.update(Group(*parts, foot), refresh=True)
            stop.wait(WATCH_SECONDS)
