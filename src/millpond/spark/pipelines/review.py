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
from millpond.columns.tokens import SqlError, Unsupported
from millpond.remote.bootstrap import Address, addresses
from millpond.remote.client_file import client_settings
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError
from millpond.spark.options import OptionError, read_options
from millpond.spark.parsing import parsed_fields
from millpond.spark.pipelines.context import kafka_options, parse_options, source_options
from millpond.spark.pipelines.kind import ColumnUse
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.kinds.columns import FAULT, HEADERS, RAW_VALUE, RECORD, VALUE
from millpond.spark.pipelines.tables import Declaration, Job, Source, Transform
from millpond.spark.pipelines.values import DeclarationError
from millpond.spark.pipelines.values import nearest as nearest_of
from millpond.spark.sql.columns import Columns, check_expression, check_query

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
    result = Review()
    first = _input_columns(pipeline, result)
    steps = _step_columns(pipeline, first, result)
    for job in pipeline.jobs:
        column_uses = kind_of(job).column_uses
        for use in column_uses(job, steps[job.input]) if column_uses is not None else ():
            _check_use(job, use, result)
    return result


def review_topics(pipeline: Declaration, result: Review) -> None:
    """Check that the topics it reads exist."""
    source = pipeline.source
    if source is None or not any(job.reads_source for job in pipeline.jobs):
        return
    try:
        brokers = addresses(source.brokers)
    except ClientError as fault:
        result.faults.append(f"[source] bootstrap: {str(fault).removeprefix('bootstrap.servers=')}")
        return
    if not _is_reachable(brokers):
        result.notes.append(f"{source.brokers} does not answer, so its topics were not checked")
        return
    own = {key.lower().removeprefix("kafka."): each for key, each in kafka_options(source).items()}
    patience = {"default.api.timeout.ms": str(ANSWER_MS), "request.timeout.ms": str(ANSWER_MS)}
    try:
        with Cluster(client_settings() | own | patience) as cluster:
            names = [name for name, each in cluster.topics().items() if not each.is_internal]
    except (ClientError, OSError) as fault:
        result.notes.append(f"the topics were not checked: {fault}")
        return
    result.missing.extend(_missing(source, names))


def _is_reachable(brokers: Iterable[Address]) -> bool:
    """Whether the port accepts a plain connection: a client would keep retrying."""
    for address in brokers:
        try:
            socket.create_connection(address, ANSWER_MS / 1000).close()
            return True
        except OSError:
            continue
    return False


def _missing(source: Source, names: list[str]) -> Iterator[str]:
    for name in source.topic:
        if name not in names:
            end = nearest(name, names)
            hint = end if end != "." else f"; create it with `millpond topic create {name}`"
            yield f"[source] topic: {source.brokers} has no topic {name}{hint}"
    if source.pattern and not any(re.fullmatch(source.pattern, name) for name in names):
        yield f"[source] pattern: no topic at {source.brokers} matches {source.pattern}"


def _input_columns(pipeline: Declaration, result: Review) -> Columns:
    """The columns before any transform, from the source's own code."""
    job = next((each for each in pipeline.jobs if each.reads_source), None)
    if pipeline.source is None or job is None:
        return None
    try:
        options = read_options(source_options(pipeline, job) | parse_options(pipeline, job), "readStream")
    except OptionError as fault:
        result.faults.append(f"[source] options: {fault}")
        return None
    except DeclarationError as fault:
        result.faults.append(str(fault))
        return None
    if pipeline.parse.format == "raw":
        return _of_records(pipeline.source, (RAW_VALUE,))
    try:
        parsed = parsed_fields(options)
    except OptionError as fault:
        key = "schema_file" if pipeline.parse.schema_file else "schema"
        result.faults.append(f"[parse] {key}: {str(fault).removeprefix('option valueSchema: ')}")
        return None
    kind = parsed[0].dataType
    assert isinstance(kind, StructType), "values are read as records"
    return _of_records(
        pipeline.source, (*kind.names, VALUE), (FAULT,) if pipeline.parse.bad_records == "null" else ()
    )


def _of_records(source: Source, content: tuple[str, ...], behind: tuple[str, ...] = ()) -> Columns:
    without = any(key.lower() == "includeheaders" and each == "false" for key, each in source.options.items())
    return (*content, *(name for name in RECORD if name != HEADERS or not without), *behind)


def _step_columns(pipeline: Declaration, first: Columns, result: Review) -> Mapping[str, Columns]:
    """The columns of each step by name; the last step's under ""."""
    steps: dict[str, Columns] = {"input": first, "": first}
    for number, step in enumerate(pipeline.transforms, 1):
        tables = {name: each for name, each in steps.items() if name} | {"input": steps[""]}
        steps[""] = _of_step(step, f"[[transform]] {step.name or number}", tables, result)
        if step.name:
            steps[step.name] = steps[""]
    return steps


def _of_step(step: Transform, place: str, tables: Mapping[str, Columns], result: Review) -> Columns:
    try:
        findings = check_query(step.sql, tables)
    except SqlError as fault:
        result.faults.append(f"{place} sql: {fault}")
        return None
    except Unsupported as part:
        result.notes.append(f"{place} sql has {part}, which only Spark can parse; its columns were not checked")
        return None
    result.faults.extend(f"{place} sql: {each}" for each in findings.faults)
    result.notes.extend(
        f"{place} sql reads {each}, which is not a step of this pipeline: it must be a table that Spark knows"
        for each in findings.unknown_tables
    )
    return findings.columns


def _check_use(job: Job, use: ColumnUse, result: Review) -> None:
    table = f"[{job.kind}]" if job.name == job.kind else f"[{job.kind}] {job.name}:"
    place = f"{table} {use.key}"
    if use.is_name:
        columns = use.columns
        if columns is not None and use.sql.lower() not in {each.lower() for each in columns}:
            result.faults.append(f"{place}: there is no column {use.sql!r}{nearest_of(use.sql, columns)}")
        return
    try:
        findings = check_expression(use.sql, use.columns)
    except SqlError as fault:
        result.faults.append(f"{place} = {use.sql!r}: {fault}")
    except Unsupported as part:
        result.notes.append(f"{place} has {part}, which only Spark can parse")
    else:
        result.faults.extend(f"{place} = {use.sql!r}: {each}" for each in findings.faults)
