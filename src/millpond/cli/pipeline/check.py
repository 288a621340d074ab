"""`millpond pipeline check`: shows a declaration as parsed, and whether Spark can run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from millpond.base.secret_names import HIDDEN, is_secret, shown
from millpond.cli.errors import Failed
from millpond.cli.pipeline.file import Wrong, sentence
from millpond.cli.terminal import Row, panel, print_json
from millpond.spark.pipelines.context import dead_letter_topics
from millpond.spark.pipelines.declaration import Pipeline
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.session import SessionError, check_python, find_java
from millpond.spark.pipelines.tables import Job
from millpond.spark.pipelines.values import Duration, key_of
from millpond.spark.versions import installed_version


def check_pipeline(file: Path, pipeline: Pipeline, *, as_json: bool) -> None:
    """Prints all faults at once, or the declaration. The exit code is 2 for an invalid declaration, 1 for a missing
    topic."""
    try:
        check_python()
    except SessionError as fault:
        # Column types are Spark's: without pyspark the declaration cannot be checked.
        raise Failed(f"{file} was parsed, but cannot be checked: {sentence(str(fault))}") from None
    from millpond.spark.pipelines.review import review, review_topics

    result = review(pipeline)
    review_topics(pipeline, result)
    if as_json:
        print_json(plain(pipeline) | {"faults": result.faults, "missing": result.missing, "notes": result.notes})
    if result.faults:
        raise Wrong(_listed(file, [*result.faults, *result.missing]))
    if not as_json:
        click.echo(panel(pipeline.name, list(rows(pipeline))))
        for note in result.notes:
            click.echo(f"Note: {sentence(note)}")
    if result.missing:
        raise Failed(_listed(file, result.missing))
    if not as_json:
        click.echo(_verdict())


def refuse_missing_topics(file: Path, pipeline: Pipeline) -> None:
    """Raises Failed if the cluster answers and a topic of the pipeline is missing."""
    try:
        check_python()
    except SessionError:
        # The run itself reports it.
        return
    from millpond.spark.pipelines.review import Review, review_topics

    result = Review()
    review_topics(pipeline, result)
    if result.missing:
        raise Failed(_listed(file, result.missing))


def _listed(file: Path, faults: Sequence[str]) -> str:
    if len(faults) == 1:
        return f"{file}, {sentence(faults[0])}"
    return "\n".join([f"{file} has {len(faults)} faults:", *(f"  {sentence(each)}" for each in faults)])


def _verdict() -> str:
    try:
        java = find_java()
    except SessionError as fault:
        return f"The declaration is valid, but Spark cannot run here: {sentence(str(fault))}"
    return f"The declaration is valid. Spark {installed_version('pyspark')} is installed, with Java {java.version}."


def rows(pipeline: Pipeline) -> Iterator[Row]:
    yield "checkpoint", pipeline.checkpoint
    yield "trigger", pipeline.trigger
    source, parse = pipeline.source, pipeline.parse
    if source is not None:
        what = ", ".join(source.topic) or f"topics like {source.pattern}"
        start = f"{source.start:%Y-%m-%dT%H:%M:%SZ}" if isinstance(source.start, datetime) else source.start
        yield "reads", f"{what} at {source.brokers}, first from {start}"
        if source.group:
            yield "group", source.group
        for key, text in source.options.items():
            yield "option", f"{key} = {shown(key, text)}"
        yield "values", parse.format + (f": {_short(parse.schema_text())}" if parse.format != "raw" else "")
        if parse.format != "raw":
            letters = ", ".join(dead_letter_topics(pipeline, source.topic))
            yield "bad records", parse.bad_records + (f" to {letters}" if letters else "")
    for number, step in enumerate(pipeline.transforms, 1):
        yield f"step {number}", (f"{step.name}: " if step.name else "") + _short(step.sql)
    for key, text in pipeline.spark.conf.items():
        yield "spark", f"{key} = {shown(key, text)}"
    for job in pipeline.jobs:
        yield "", ""
        yield from _job_rows(job)


def _job_rows(job: Job) -> Iterator[Row]:
    kind = kind_of(job)
    yield "job", f"{job.name}: {kind.doc}" if job.name == kind.name else f"{job.name} ({kind.name}): {kind.doc}"
    for key, value in _non_default(job).items():
        if key != "name":
            yield f"  {key}", _short(_as_text(value))


def _non_default(table: Any) -> dict[str, Any]:
    """Settings that differ from their defaults."""
    pairs = ((each, getattr(table, each.name)) for each in dataclasses.fields(table))
    return {key_of(each): value for each, value in pairs if value != each.default and value not in (None, "", (), {})}


def _as_text(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, Duration | type):
        return _as_text(_non_default(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {shown(str(key), _as_text(each))}" for key, each in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(_as_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else line[:99] + "…"


def plain(value: Any, key: str = "") -> Any:
    """As JSON, without secrets."""
    if isinstance(value, Duration | datetime):
        return str(value)
    if isinstance(value, Pipeline):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Job):
        return {"kind": value.kind} | _fields(value)
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {name: plain(each, str(name)) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return HIDDEN if isinstance(value, str) and is_secret(key) else value


def _fields(value: Any) -> dict[str, Any]:
    return {key_of(each): plain(getattr(value, each.name), each.name) for each in dataclasses.fields(value)}
