"""A pipeline as it is declared: source, parsing, transforms and jobs. From TOML or from Python, and equal in both.

Every mistake is told with its file, table and key, and an unknown name with the nearest known one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millpond.spark.pipelines.kind import Job, Kind
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
    Duration,
    Reader,
    arguments_of,
    key_of,
    nearest,
    one_of,
    read_moment,
    settle,
    value,
)

if TYPE_CHECKING:
    from millpond.spark.pipelines.runner import Outcome

FILE_BYTES_MAX: Final = 4_000_000
JOBS_MAX: Final = 100
HOME: Final = ".millpond/pipelines"
"""Where pipelines keep their checkpoints unless told otherwise, each in a folder of its name."""


def _start(given: Any) -> str | datetime:
    if given in ("earliest", "latest"):
        return str(given)
    try:
        return read_moment(given)
    except ValueError:
        raise ValueError('it is "earliest", "latest" or a moment such as "2026-01-31T08:30:00Z"') from None


START: Final = Reader("start", _start)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The topics that a pipeline reads."""

    bootstrap: str = value("Brokers, as host:port,host:port.", TEXT, "127.0.0.1:9092")
    topic: tuple[str, ...] = value("The topic, or a list of topics.", NAMES, ())
    pattern: str = value("Topics by a regular expression, instead of `topic`.", TEXT, "")
    start: str | datetime = value('Where a first run begins: "earliest", "latest" or a moment.', START, "earliest")
    group: str = value("Commit finished offsets as this group, so that its lag can be seen.", NAME, "")
    options: dict[str, str] = value("Any further option of the source, by its name.", SETTINGS, {})

    def __post_init__(self) -> None:
        settle(self)
        if bool(self.topic) == bool(self.pattern):
            raise DeclarationError(
                "topic is missing: name what to read" if not self.topic else "give topic or pattern, not both"
            )
        if self.pattern:
            try:
                re.compile(self.pattern)
            except re.error as fault:
                raise DeclarationError(f"pattern = {self.pattern!r}: it is no regular expression: {fault}") from None


@dataclass(frozen=True, kw_only=True)
class Parse:
    """What the values of the records are, and what happens to those that are not."""

    format: str = value("What the values are.", one_of("raw", "json", "avro"), "raw")
    schema: str = value('Columns and types, as "id long, at timestamp", or an Avro schema.', TEXT, "")
    schema_file: str = value("The schema in a file of its own.", PATH, "")
    bad_records: str = value("What happens to what does not parse.", one_of("fail", "null", "dead_letters"), "fail")
    dead_letters: str = value('The topic for bad records; "<topic>.dead" if not given.', NAME, "")

    def __post_init__(self) -> None:
        settle(self)
        if self.schema and self.schema_file:
            raise DeclarationError("give schema or schema_file, not both")
        if self.format == "raw" and (self.schema or self.schema_file):
            raise DeclarationError('a schema needs format = "json" or "avro"')
        if self.format != "raw" and not (self.schema or self.schema_file):
            raise DeclarationError(f'schema is missing: say what is in the {self.format}, as "id long, at timestamp"')
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
            reason = fault.strerror if isinstance(fault, OSError) else "it is no text in UTF-8"
            raise DeclarationError(f"[parse] schema_file = {self.schema_file!r}: {reason}") from None
        if len(text) > LENGTH_MAX:
            raise DeclarationError(f"[parse] schema_file = {self.schema_file!r}: it is too long for a schema")
        return text.strip()


@dataclass(frozen=True, kw_only=True)
class Transform:
    """One step in Spark SQL. It reads `input` (the step before) or any earlier step by its name."""

    sql: str = value("A query, as select … from input.", TEXT)
    name: str = value("A name for its rows, for later steps and for jobs.", NAME, "")

    def __post_init__(self) -> None:
        settle(self)
        if self.name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.name):
            raise DeclarationError(f"name = {self.name!r}: in SQL a name is made of letters, digits and '_'")


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """What the pipeline wants of Spark. The command line goes before it."""

    master: str = value("Where Spark runs, as local[*] or spark://host:7077.", TEXT, "")
    conf: dict[str, str] = value("Settings of Spark by their names.", SETTINGS, {})

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One pipeline: what it reads, how, and the jobs that it feeds."""

    name: str = value("What the pipeline is called.", NAME)
    jobs: tuple[Job, ...] = ()
    source: Source | None = None
    parse: Parse = field(default_factory=Parse)
    transforms: tuple[Transform, ...] = ()
    checkpoint: str = value(f"Where its state is kept; {HOME}/<name> if not given.", PATH, "")
    trigger: str = value('"continuous", "available_now" or an interval such as "10 seconds".', TRIGGER, CONTINUOUS)
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        settle(self)
        object.__setattr__(self, "jobs", tuple(self.jobs))
        object.__setattr__(self, "transforms", tuple(self.transforms))
        object.__setattr__(self, "checkpoint", placed(self.checkpoint or f"{HOME}/{self.name}", Path.cwd()))
        self._check_jobs()
        self._check_views()

    def _check_jobs(self) -> None:
        if not self.jobs:
            raise DeclarationError(f"there is no job: add a table such as [archive]; the kinds are {_kind_names()}")
        if len(self.jobs) > JOBS_MAX:
            raise DeclarationError(f"there are {len(self.jobs)} jobs; at most {JOBS_MAX} fit into one pipeline")
        names = [each.name for each in self.jobs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DeclarationError(f'two jobs are called {twice}: give each a name of its own, as name = "{twice}-2"')
        for job in self.jobs:
            if self.source is None and kind_of(job).reads_source:
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
        """Where this machine keeps the lock, the status and the log. The checkpoint itself may be far away."""
        return Path(self.checkpoint) if is_local(self.checkpoint) else Path.cwd() / HOME / self.name

    @classmethod
    def load(cls, path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Pipeline:
        """Read a declaration from a TOML file."""
        return load(Path(path), os.environ if environment is None else environment)

    def run(self, **how: Any) -> Outcome:
        """Run it here, until it is done or stopped. Takes what `running.run` takes: master, conf, once, …"""
        from millpond.spark.pipelines.runner import run

        return run(self, **how)


def kinds() -> Mapping[str, Kind[Any]]:
    from millpond.spark.pipelines.kinds import KINDS

    return KINDS


def kind_of(job: Job) -> Kind[Any]:
    return kinds()[job.kind]


def _kind_names() -> str:
    return ", ".join(kinds())


def is_local(location: str) -> bool:
    return "://" not in location


def placed(location: str, folder: Path) -> str:
    """A path as an absolute one, from `folder` on; an address of another file system stays as it is."""
    if not is_local(location):
        return location.removeprefix("file://") if location.startswith("file:///") else location
    return os.path.normpath(folder / Path(location).expanduser())


# From TOML


def load(path: Path, environment: Mapping[str, str]) -> Pipeline:
    """Read a declaration; every error begins with the file's name."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise DeclarationError(f"{path}: it is larger than {FILE_BYTES_MAX:,} bytes: this is no declaration")
        text = path.read_bytes().decode()
        given = tomllib.loads(text)
    except FileNotFoundError:
        raise DeclarationError(f"{path}: there is no such file; `millpond pipeline init` writes an example") from None
    except IsADirectoryError:
        raise DeclarationError(f"{path}: it is a folder; name the file of the declaration") from None
    except OSError as fault:
        raise DeclarationError(f"{path}: it cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise DeclarationError(f"{path}: it is no text in UTF-8") from None
    except tomllib.TOMLDecodeError as fault:
        raise DeclarationError(f"{path}: it is no TOML: {fault}") from None
    return read(given, str(path), path.resolve().parent, environment)


def read(given: Mapping[str, Any], where: str, folder: Path, environment: Mapping[str, str]) -> Pipeline:
    """The pipeline of a parsed file. Relative paths begin at `folder`."""
    return _File(where, folder, environment).pipeline(given)


_TABLES: Final[Mapping[str, type]] = {"source": Source, "parse": Parse, "spark": SparkSettings}


@dataclass(frozen=True)
class _File:
    where: str
    folder: Path
    environment: Mapping[str, str]

    def pipeline(self, given: Mapping[str, Any]) -> Pipeline:
        known_keys = [key_of(each) for each in fields(Pipeline) if each.metadata]
        top: dict[str, Any] = {}
        jobs: list[Job] = []
        for key, each in given.items():
            if key in _TABLES:
                top[key] = self.table(_TABLES[key], each, f"[{key}]")
            elif key == "transform":
                top["transforms"] = [self.table(Transform, one, "[[transform]]") for one in self._list(each, key)]
            elif key in kinds():
                jobs += [self.table(kinds()[key].job, one, f"[{key}]") for one in self._list(each, key)]
            elif key in known_keys:
                top[key] = self._filled(each, key)
            else:
                known = [*known_keys, *_TABLES, "transform", *kinds()]
                what = "table" if isinstance(each, dict | list) else "key"
                raise self._error("", f"there is no {what} {key!r}{nearest(key, known)}")
        if "name" not in top:
            raise self._error("", 'name is missing: write name = "orders" on the first line')
        top["checkpoint"] = placed(top.get("checkpoint") or f"{HOME}/{top['name']}", self.folder)
        made: Pipeline = self._made(Pipeline, top | {"jobs": jobs}, "")
        return made

    def table(self, kind: type, given: Any, where: str) -> Any:
        if not isinstance(given, Mapping):
            raise self._error(where, "write a table: its name in brackets on a line, its keys below")
        try:
            filled = self._paths(kind, {key: self._filled(each, f"{where} {key}") for key, each in given.items()})
            arguments = arguments_of(kind, filled)
        except DeclarationError as fault:
            raise self._error(where, str(fault)) from None
        return self._made(kind, arguments, where)

    def _made(self, kind: type, arguments: Mapping[str, Any], where: str) -> Any:
        try:
            return kind(**arguments)
        except DeclarationError as fault:
            raise self._error(where, str(fault)) from None

    def _list(self, given: Any, key: str) -> Sequence[Any]:
        return given if isinstance(given, list) else [given]

    def _paths(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        """Relative paths begin at the file that names them, in tables inside tables too."""
        readers = {key_of(each): each.metadata.get("reader") for each in fields(kind)}
        found = dict(given)
        for key, each in given.items():
            reader = readers.get(key)
            if reader is not None and reader.is_path and isinstance(each, str) and each:
                found[key] = placed(each, self.folder)
            elif reader is not None and reader.table is not None and isinstance(each, Mapping):
                found[key] = self._paths(reader.table, each)
        return found

    def _filled(self, given: Any, where: str) -> Any:
        """With ${NAME} and ${NAME:-otherwise} replaced from the environment; $${ is a plain ${."""
        if isinstance(given, str):
            return _VARIABLE.sub(lambda found: self._variable(found, where), given)
        if isinstance(given, list):
            return [self._filled(each, where) for each in given]
        if isinstance(given, dict):
            return {key: self._filled(each, f"{where}.{key}") for key, each in given.items()}
        return given

    def _variable(self, found: re.Match[str], where: str) -> str:
        if found[0] == "$${":
            return "${"
        name, otherwise = found[1], found[2]
        text = self.environment.get(name, otherwise)
        if text is None:
            raise DeclarationError(
                f"{self.where}, {where}: the environment has no {name}; set it, or write ${{{name}:-otherwise}}"
            )
        return text

    def _error(self, where: str, text: str) -> DeclarationError:
        begun = text.startswith(self.where)
        return DeclarationError(
            text if begun else f"{self.where}, {where}: {text}" if where else f"{self.where}: {text}"
        )


_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

__all__ = [
    "DeclarationError",
    "Duration",
    "Parse",
    "Pipeline",
    "Source",
    "SparkSettings",
    "Transform",
    "kind_of",
    "load",
    "read",
]
