"""The tables of a declaration: source, parsing, SQL transforms and jobs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from millpond.remote.bootstrap import bootstrap_servers
from millpond.remote.client_file import client_settings
from millpond.remote.errors import ConfigError
from millpond.spark.pipelines.values import (
    CONTINUOUS,
    LENGTH_MAX,
    NAME,
    NAMES,
    PATH,
    SETTINGS,
    TEXT,
    TRIGGER,
    DeclarationError,
    Reader,
    nearest,
    one_of,
    read_fields,
    read_moment,
    value,
)

JOBS_MAX: Final = 100
HOME: Final = ".millpond/pipelines"
"""The default folder for checkpoints, with a subfolder for each pipeline."""


def _start(raw: Any) -> str | datetime:
    if raw in ("earliest", "latest"):
        return str(raw)
    try:
        return read_moment(raw)
    except ValueError:
        raise ValueError('it is "earliest", "latest" or a moment such as "2026-01-31T08:30:00Z"') from None


START: Final = Reader("start", _start)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The topics that a pipeline reads."""

    bootstrap: str = value(
        "Brokers, as host:port,host:port; by default those of MILLPOND_BOOTSTRAP, of MILLPOND_CLIENT_CONFIG or of "
        "the profile, else 127.0.0.1:9092.",
        TEXT,
        "",
    )
    topic: tuple[str, ...] = value("The topic, or a list of topics.", NAMES, ())
    pattern: str = value("Topics by a regular expression, instead of `topic`.", TEXT, "")
    start: str | datetime = value('Where a first run begins: "earliest", "latest" or a moment.', START, "earliest")
    group: str = value("Commit finished offsets as this group, so that group tools show its lag.", NAME, "")
    options: dict[str, str] = value("Other options of the source, by name.", SETTINGS, {})

    @property
    def brokers(self) -> str:
        """The bootstrap servers. DeclarationError if the file of MILLPOND_CLIENT_CONFIG cannot be read."""
        if self.bootstrap:
            return self.bootstrap
        try:
            return bootstrap_servers(None, client_settings().get("bootstrap.servers"))
        except ConfigError as fault:
            raise DeclarationError(str(fault)) from None

    def __post_init__(self) -> None:
        read_fields(self)
        if bool(self.topic) == bool(self.pattern):
            raise DeclarationError(
                "topic is missing: name the topic to read" if not self.topic else "give topic or pattern, not both"
            )
        if self.pattern:
            try:
                re.compile(self.pattern)
            except re.error as fault:
                raise DeclarationError(
                    f"pattern = {self.pattern!r}: it is not a regular expression: {fault}"
                ) from None


@dataclass(frozen=True, kw_only=True)
class Parse:
    """The format of the values, and what happens to bad ones."""

    format: str = value("The format of the values.", one_of("raw", "json", "avro"), "raw")
    schema: str = value('Columns and types, as "id long, at timestamp", or an Avro schema.', TEXT, "")
    schema_file: str = value("A file that contains the schema.", PATH, "")
    bad_records: str = value(
        "What happens to values that do not parse.", one_of("fail", "null", "dead_letters"), "fail"
    )
    dead_letters: str = value('The topic for bad records; "<topic>.bad.dlq" if not given.', NAME, "")

    def __post_init__(self) -> None:
        read_fields(self)
        if self.schema and self.schema_file:
            raise DeclarationError("give schema or schema_file, not both")
        if self.format == "raw" and (self.schema or self.schema_file):
            raise DeclarationError('a schema needs format = "json" or "avro"')
        if self.format != "raw" and not (self.schema or self.schema_file):
            raise DeclarationError(
                f'schema is missing: describe the {self.format} values, such as "id long, at timestamp"'
            )
        if self.dead_letters and self.bad_records != "dead_letters":
            raise DeclarationError('dead_letters needs bad_records = "dead_letters"')

    def schema_text(self) -> str:
        """The schema itself, from its file if it has one."""
        if not self.schema_file:
            return self.schema
        try:
            with open(self.schema_file, encoding="utf-8") as file:
                text = file.read(LENGTH_MAX + 1)
        except (OSError, UnicodeDecodeError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
            raise DeclarationError(f"[parse] schema_file = {self.schema_file!r}: {reason}") from None
        if len(text) > LENGTH_MAX:
            raise DeclarationError(f"[parse] schema_file = {self.schema_file!r}: it is too long for a schema")
        return text.strip()


@dataclass(frozen=True, kw_only=True)
class Transform:
    """One step in Spark SQL. It reads `input` (the step before) or any earlier step by its name."""

    sql: str = value("A query, as select … from input.", TEXT)
    name: str = value("A name for the result, for later steps and for jobs.", NAME, "")

    def __post_init__(self) -> None:
        read_fields(self)
        if self.name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.name):
            raise DeclarationError(f"name = {self.name!r}: in SQL a name is made of letters, digits and '_'")


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Spark settings. The command line takes precedence."""

    master: str = value("Where Spark runs, as local[*] or spark://host:7077.", TEXT, "")
    conf: dict[str, str] = value("Spark settings, by name.", SETTINGS, {})

    def __post_init__(self) -> None:
        read_fields(self)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The fields of every job. A kind adds its own with `values.value`; they are read and checked here, so a kind
    with its own `__post_init__` (for checks across fields) must call `super().__post_init__()`."""

    kind: ClassVar[str]
    reads_source: ClassVar[bool] = True
    """Whether the job needs a [source]."""

    name: str = value("The job's name in figures and checkpoint; by default the name of its kind.", NAME, "")
    input: str = value("The transform that it reads; by default the last one.", NAME, "")
    trigger: str | None = value("Like the pipeline's trigger, for this job only.", TRIGGER, None)

    def __post_init__(self) -> None:
        read_fields(self)
        if not self.name:
            object.__setattr__(self, "name", self.kind)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """One pipeline as a value; `declaration.Pipeline` can be read from a file and run."""

    name: str = value("The name of the pipeline.", NAME)
    jobs: tuple[Job, ...] = ()
    source: Source | None = None
    parse: Parse = field(default_factory=Parse)
    transforms: tuple[Transform, ...] = ()
    checkpoint: str = value(f"The folder of its state; {HOME}/<name> by default.", PATH, "")
    trigger: str = value('"continuous", "available_now" or an interval such as "10 seconds".', TRIGGER, CONTINUOUS)
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        read_fields(self)
        object.__setattr__(self, "jobs", tuple(self.jobs))
        object.__setattr__(self, "transforms", tuple(self.transforms))
        object.__setattr__(self, "checkpoint", resolve_path(self.checkpoint or f"{HOME}/{self.name}", Path.cwd()))
        self._check_jobs()
        self._check_views()

    def _check_jobs(self) -> None:
        if len(self.jobs) > JOBS_MAX:
            raise DeclarationError(f"there are {len(self.jobs)} jobs; at most {JOBS_MAX} fit into one pipeline")
        names = [each.name for each in self.jobs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DeclarationError(
                f'two jobs are called {twice}: give each a different name, such as name = "{twice}-2"'
            )
        for job in self.jobs:
            if self.source is None and job.reads_source:
                raise DeclarationError(f"[source] is missing: {job.name} reads topics")

    def _check_views(self) -> None:
        names = [each.name for each in self.transforms if each.name]
        for name in names:
            if name.lower() == "input" or names.count(name) > 1:
                raise DeclarationError(f"[[transform]] name = {name!r}: this name is taken")
        for job in self.jobs:
            if job.input and job.input not in names and job.input != "input":
                known = nearest(job.input, names) if names else ": no [[transform]] has a name"
                raise DeclarationError(f"[{job.kind}] input = {job.input!r}: there is no such transform{known}")

    @property
    def folder(self) -> Path:
        """The local folder for lock, status and log; the checkpoint may be remote."""
        return Path(self.checkpoint) if is_local(self.checkpoint) else Path.cwd() / HOME / self.name


def is_local(location: str) -> bool:
    return "://" not in location


def job_folder(checkpoint: str, pipeline: Declaration, job: Job) -> Path:
    """The folder for a job's own files: beside its checkpoint, or local if that is remote."""
    return Path(checkpoint) if is_local(checkpoint) else pipeline.folder / "jobs" / job.name


def resolve_path(location: str, folder: Path) -> str:
    """An absolute path relative to `folder`; URLs of other file systems are unchanged."""
    if not is_local(location):
        return location.removeprefix("file://") if location.startswith("file:///") else location
    return os.path.normpath(folder / os.path.expanduser(location))
