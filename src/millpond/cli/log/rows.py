"""Rows of a file: a table for people, lines of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from millpond.base.named_tuple import NamedTuple
from millpond.cli.terminal import Cell, print_table
from millpond.cli.times import show_time


class Moment(NamedTuple):
    """A time, formatted for people, plain for programs."""

    ms: int


Value = str | int | Moment | None


def show_rows(columns: Sequence[str], rows: Sequence[Sequence[Value]], as_json: bool, *, words: int = 1) -> None:
    if not as_json:
        # An id is a name: it gets no thousands separators.
        cells = [[_cell(value) if at >= words else str(_cell(value)) for at, value in enumerate(row)] for row in rows]
        print_table(columns, cells, words=words)
        return
    names = [column.lower().replace(" ", "_") for column in columns]
    for row in rows:
        fields = (value.ms if isinstance(value, Moment) else value for value in row)
        click.echo(json.dumps(dict(zip(names, fields, strict=True))))


def _cell(value: Value) -> Cell:
    match value:
        case None:
            return "-"
        case Moment(ms):
            return show_time(ms)
        case _:
            return value
