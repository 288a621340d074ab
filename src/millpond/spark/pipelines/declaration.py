"""A pipeline declaration: source, parsing, transforms and jobs. TOML and Python give equal declarations.

Every error names the file, table and key; for an unknown name it suggests the nearest known one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millpond.spark.pipelines import kinds
from millpond.spark.pipelines.tables import (
    HOME,
    Declaration,
    Job,
    Parse,
    Source,
    SparkSettings,
    Transform,
    resolve_path,
)
from millpond.spark.pipelines.values import DeclarationError, Duration, arguments_of, key_of, nearest

if TYPE_CHECKING:
    from millpond.spark.pipelines.runner import Outcome

FILE_BYTES_MAX: Final = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Pipeline(Declaration):
    """One pipeline: its source, parsing and jobs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.jobs:
            names = ", ".join(kinds.KINDS)
            raise DeclarationError(f"there is no job: add a table such as [archive]; the kinds are {names}")

    @classmethod
    def load(cls, path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Pipeline:
        """Read a declaration from a TOML file."""
        return load(Path(path), os.environ if environment is None else environment)

    def run(self, **how: Any) -> Outcome:
        """Run it here until it is done or stopped. Takes the arguments of `runner.run`: master, conf, once, …"""
        from millpond.spark.pipelines.runner import run

        return run(self, **how)


# From TOML


def load(path: Path, environment: Mapping[str, str]) -> Pipeline:
    """Read a declaration; every error begins with the file's name."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise DeclarationError(f"{path}: it is larger than {FILE_BYTES_MAX:,} bytes: it cannot be a declaration")
        text = path.read_bytes().decode()
        raw = tomllib.loads(text)
    except DeclarationError:
        raise
    except FileNotFoundError:
        raise DeclarationError(f"{path}: there is no such file; `millpond pipeline init` writes an example") from None
    except IsADirectoryError:
        raise DeclarationError(f"{path}: it is a folder; name the file of the declaration") from None
    except OSError as fault:
        raise DeclarationError(f"{path}: it cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise DeclarationError(f"{path}: it is not UTF-8 text") from None
    except RecursionError:
        raise DeclarationError(f"{path}: its values are nested too deeply") from None
    except ValueError as fault:  # Of TOML, or of a number with more digits than Python reads.
        raise DeclarationError(f"{path}: it is not valid TOML: {fault}") from None
    return read(raw, str(path), path.resolve().parent, environment)


def read(raw: Mapping[str, Any], where: str, folder: Path, environment: Mapping[str, str]) -> Pipeline:
    """The pipeline of a parsed file. Paths are relative to `folder`."""
    return _File(where, folder, environment).pipeline(raw)


_TABLES: Final[Mapping[str, type]] = {"source": Source, "parse": Parse, "spark": SparkSettings}


@dataclass(frozen=True)
class _File:
    where: str
    folder: Path
    environment: Mapping[str, str]

    def pipeline(self, raw: Mapping[str, Any]) -> Pipeline:
        plain_keys = [key_of(each) for each in fields(Pipeline) if each.metadata]
        top: dict[str, Any] = {}
        jobs: list[Job] = []
        for key, each in raw.items():
            if key in _TABLES:
                top[key] = self.table(_TABLES[key], each, f"[{key}]")
            elif key == "transform":
                top["transforms"] = [self.table(Transform, one, "[[transform]]") for one in self._list(each, key)]
            elif key in kinds.KINDS:
                jobs += [self.table(kinds.KINDS[key].job, one, f"[{key}]") for one in self._list(each, key)]
            elif key in plain_keys:
                top[key] = self._expand(each, key)
            else:
                names = [*plain_keys, *_TABLES, "transform", *kinds.KINDS]
                what = "table" if isinstance(each, dict | list) else "key"
                raise self._error("", f"there is no {what} {key!r}{nearest(key, names)}")
        if "name" not in top:
            raise self._error("", 'name is missing: write name = "orders" on the first line')
        checkpoint = top.get("checkpoint", "")
        if checkpoint == "":
            checkpoint = f"{HOME}/{top['name']}"
        # A value that is not a string is refused later, with all other values.
        top["checkpoint"] = resolve_path(checkpoint, self.folder) if isinstance(checkpoint, str) else checkpoint
        pipeline: Pipeline = self._build(Pipeline, top | {"jobs": jobs}, "")
        return pipeline

    def table(self, kind: type, raw: Any, where: str) -> Any:
        if not isinstance(raw, Mapping):
            raise self._error(where, "write a table: its name in brackets on a line, its keys below")
        try:
            expanded = self._paths(kind, {key: self._expand(each, f"{where} {key}") for key, each in raw.items()})
            arguments = arguments_of(kind, expanded)
        except DeclarationError as fault:
            raise self._error(where, str(fault)) from None
        return self._build(kind, arguments, where)

    def _build(self, kind: type, arguments: Mapping[str, Any], where: str) -> Any:
        try:
            return kind(**arguments)
        except DeclarationError as fault:
            raise self._error(where, str(fault)) from None

    def _list(self, raw: Any, key: str) -> Sequence[Any]:
        return raw if isinstance(raw, list) else [raw]

    def _paths(self, kind: type, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Resolve paths relative to the file that names them, also in nested tables."""
        readers = {key_of(each): each.metadata.get("reader") for each in fields(kind)}
        expanded = dict(raw)
        for key, each in raw.items():
            reader = readers.get(key)
            if reader is not None and reader.is_path and isinstance(each, str) and each:
                expanded[key] = resolve_path(each, self.folder)
            elif reader is not None and reader.table is not None and isinstance(each, Mapping):
                expanded[key] = self._paths(reader.table, each)
        return expanded

    def _expand(self, raw: Any, where: str) -> Any:
        """Replace ${NAME} and ${NAME:-default} from the environment; $${ is a literal ${."""
        if isinstance(raw, str):
            return _VARIABLE.sub(lambda match: self._variable(match, where), raw)
        if isinstance(raw, list):
            return [self._expand(each, where) for each in raw]
        if isinstance(raw, dict):
            return {key: self._expand(each, f"{where}.{key}") for key, each in raw.items()}
        return raw

    def _variable(self, match: re.Match[str], where: str) -> str:
        if match[0] == "$${":
            return "${"
        name, otherwise = match[1], match[2]
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
    "load",
    "read",
]
