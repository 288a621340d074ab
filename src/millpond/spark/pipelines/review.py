"""Checks a pipeline before Spark starts: invalid types, columns and SQL, and missing topics.

A fault is certain. What only Spark can check becomes a note.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import StructType

from millpond.base.names import nearest
from millpond.remote.bootstrap import Address, addresses
from millpond.remote.client_file import client_settings
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError
from millpond.spark.options import OptionError, read_options
from millpond.spark.parsing import parsed_fields
from millpond.spark.pipelines.context import kafka_options, parse_options, source_options
from millpond.spark.pipelines.kind import Asked
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.kinds.columns import FAULT, HEADERS, RAW_VALUE, RECORD, VALUE
from millpond.spark.pipelines.tables import Declaration, Job, Source, Transform
from millpond.spark.pipelines.values import DeclarationError
from millpond.spark.pipelines.values import nearest as nearest_of
from millpond.spark.sql.columns import Columns, look_at_expression, look_at_query
from millpond.spark.sql.tokens import Beyond, SqlError

ANSWER_MS: Final = 3000
"""The timeout for listing the cluster's topics."""


@dataclass(frozen=True, slots=True)
class Review:
    """The result of a review."""

    faults: list[str] = field(default_factory=list)
    """Errors in the declaration, with table and key."""
    missing: list[str] = field(default_factory=list)
    """Topics missing in the cluster."""
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""


def review(pipeline: Declaration) -> Review:
    """Review the declaration without connecting to anything."""
    found = Review()
    first = _input_columns(pipeline, found)
    steps = _step_columns(pipeline, first, found)
    for job in pipeline.jobs:
        ask = kind_of(job).asks
        for each in ask(job, steps[job.input]) if ask is not None else ():
            _look_at(job, each, found)
    return found


def review_topics(pipeline: Declaration, found: Review) -> None:
    """Check that the topics it reads exist."""
    source = pipeline.source
    if source is None or not any(job.reads_source for job in pipeline.jobs):
        return
    try:
        ways = addresses(source.brokers)
    except ClientError as fault:
        found.faults.append(f"[source] bootstrap: {str(fault).removeprefix('bootstrap.servers=')}")
        return
    if not _answers(ways):
        found.notes.append(f"{source.brokers} does not answer, so nobody could say whether the topics are there")
        return
    own = {key.lower().removeprefix("kafka."): each for key, each in kafka_options(source).items()}
    patience = {"default.api.timeout.ms": str(ANSWER_MS), "request.timeout.ms": str(ANSWER_MS)}
    try:
        with Cluster(client_settings() | own | patience) as cluster:
            known = [name for name, each in cluster.topics().items() if not each.is_internal]
    except (ClientError, OSError) as fault:
        found.notes.append(f"nobody could say whether the topics are there: {fault}")
        return
    found.missing.extend(_missing(source, known))


def _answers(ways: Iterable[Address]) -> bool:
    """Whether the port accepts a plain connection: a client would keep retrying."""
    for address in ways:
        try:
            socket.create_connection(address, ANSWER_MS / 1000).close()
            return True
        except OSError:
            continue
    return False


def _missing(source: Source, known: list[str]) -> Iterator[str]:
    for name in source.topic:
        if name not in known:
            end = nearest(name, known)
            hint = end if end != "." else f"; create it with `millpond topic create {name}`"
            yield f"[source] topic: {source.brokers} has no topic {name}{hint}"
    if source.pattern and not any(re.fullmatch(source.pattern, name) for name in known):
        yield f"[source] pattern: no topic at {source.brokers} is like {source.pattern}"


def _input_columns(pipeline: Declaration, found: Review) -> Columns:
    """The columns before any transform, from the source's own code."""
    job = next((each for each in pipeline.jobs if each.reads_source), None)
    if pipeline.source is None or job is None:
        return None
    try:
        options = read_options(source_options(pipeline, job) | parse_options(pipeline, job), "readStream")
    except OptionError as fault:
        found.faults.append(f"[source] options: {fault}")
        return None
    except DeclarationError as fault:
        found.faults.append(str(fault))
        return None
    if pipeline.parse.format == "raw":
        return _of_records(pipeline.source, (RAW_VALUE,))
    try:
        parsed = parsed_fields(options)
    except OptionError as fault:
        key = "schema_file" if pipeline.parse.schema_file else "schema"
        found.faults.append(f"[parse] {key}: {str(fault).removeprefix('option valueSchema: ')}")
        return None
    kind = parsed[0].dataType
    assert isinstance(kind, StructType), "values are read as records"
    return _of_records(
        pipeline.source, (*kind.names, VALUE), (FAULT,) if pipeline.parse.bad_records == "null" else ()
    )


def _of_records(source: Source, content: tuple[str, ...], behind: tuple[str, ...] = ()) -> Columns:
    without = any(key.lower() == "includeheaders" and each == "false" for key, each in source.options.items())
    return (*content, *(name for name in RECORD if name != HEADERS or not without), *behind)


def _step_columns(pipeline: Declaration, first: Columns, found: Review) -> Mapping[str, Columns]:
    """The columns of each step by name; the last step's under ""."""
    steps: dict[str, Columns] = {"input": first, "": first}
    for number, step in enumerate(pipeline.transforms, 1):
        tables = {name: each for name, each in steps.items() if name} | {"input": steps[""]}
        steps[""] = _of_step(step, f"[[transform]] {step.name or number}", tables, found)
        if step.name:
            steps[step.name] = steps[""]
    return steps


def _of_step(step: Transform, place: str, tables: Mapping[str, Columns], found: Review) -> Columns:
    try:
        looked = look_at_query(step.sql, tables)
    except SqlError as fault:
        found.faults.append(f"{place} sql: {fault}")
        return None
    except Beyond as part:
        found.notes.append(f"{place} sql has {part}, which only Spark reads; its columns were not looked at")
        return None
    found.faults.extend(f"{place} sql: {each}" for each in looked.faults)
    found.notes.extend(
        f"{place} sql reads {each}, which is no step of this pipeline: Spark must know it"
        for each in looked.strangers
    )
    return looked.columns


def _look_at(job: Job, asked: Asked, found: Review) -> None:
    table = f"[{job.kind}]" if job.name == job.kind else f"[{job.kind}] {job.name}:"
    place = f"{table} {asked.key}"
    if asked.is_name:
        known = asked.columns
        if known is not None and asked.sql.lower() not in {each.lower() for each in known}:
            found.faults.append(f"{place}: there is no column {asked.sql!r}{nearest_of(asked.sql, known)}")
        return
    try:
        looked = look_at_expression(asked.sql, asked.columns)
    except SqlError as fault:
        found.faults.append(f"{place} = {asked.sql!r}: {fault}")
    except Beyond as part:
        found.notes.append(f"{place} has {part}, which only Spark reads")
    else:
        found.faults.extend(f"{place} = {asked.sql!r}: {each}" for each in looked.faults)
