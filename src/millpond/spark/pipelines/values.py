"""Values of a declaration: each is declared once with its documentation, and read and checked in the same way from
TOML and from Python, so that both forms of a pipeline are equal.

A table is a frozen dataclass of `value(...)` fields that calls `settle(self)` in its `__post_init__`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from millpond.base.spans import read_span

T = TypeVar("T")

LENGTH_MAX: Final = 1_000_000
"""The longest text in a declaration."""


class DeclarationError(ValueError):
    """An invalid declaration. The message says where and what to write instead."""


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """How a value is read: `read` converts the given value, or raises ValueError with the reason. `what` describes it
    for people. An `is_path` value is relative to the file that names it."""

    what: str
    read: Callable[[Any], T]
    is_path: bool = False
    table: type | None = None
    """The dataclass of a nested table."""


def value(doc: str, reader: Reader[T], default: Any = dataclasses.MISSING) -> Any:
    """A field of a table: its documentation, its reader and its default; without a default it is required."""
    metadata = {"doc": doc, "reader": reader}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read_fields(table: Any) -> None:
    """Read and check every field of a frozen dataclass, in place. For its `__post_init__`."""
    for each in dataclasses.fields(table):
        reader = each.metadata.get("reader")
        raw = getattr(table, each.name)
        if reader is None or (each.default is not dataclasses.MISSING and raw is each.default):
            continue
        try:
            object.__setattr__(table, each.name, reader.read(raw))
        except DeclarationError as fault:
            raise DeclarationError(f"{key_of(each)}: {fault}") from None
        except ValueError as fault:
            raise DeclarationError(f"{key_of(each)} = {_excerpt(raw)}: {fault}") from None


def key_of(field: dataclasses.Field[Any]) -> str:
    """The key in TOML: the field's name, without the trailing underscore that avoids Python keywords."""
    return field.name.rstrip("_")


def nearest(name: str, names: Iterable[str]) -> str:
    """The suggestion after an unknown name."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}."


def _excerpt(raw: object) -> str:
    # A table of options may contain secrets.
    text = "{…}" if isinstance(raw, Mapping) else repr(raw)
    return text if len(text) <= 80 else text[:77] + "…"


# Readers


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("write a text in quotes")
    if not raw.strip():
        raise ValueError("it is empty")
    if len(raw) > LENGTH_MAX:
        raise ValueError(f"it is longer than {LENGTH_MAX:,} characters")
    return raw


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def _name(raw: Any) -> str:
    if not _NAME.fullmatch(_text(raw)):
        raise ValueError("a name is made of letters, digits, '.', '_' and '-', at most 200 of them")
    return str(raw)


def _flag(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise ValueError("write true or false")
    return raw


def _path(raw: Any) -> str:
    # The reader of the file resolves relative paths.
    path = str(raw) if isinstance(raw, Path) else _text(raw)
    if "\0" in path:
        raise ValueError("no path has a zero byte in it")
    return path


def _names(raw: Any) -> tuple[str, ...]:
    if isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",")]
    if not isinstance(raw, Sequence):
        raise ValueError('write a list of names, as ["a", "b"]')
    texts = tuple(_text(each) for each in raw)
    if len(set(texts)) < len(texts):
        raise ValueError("a name is in it twice")
    return texts


def _texts(raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise ValueError('write a table of texts, as { name = "…" }')
    return {str(name): _text(text) for name, text in raw.items()}


def _settings(raw: Any) -> dict[str, str]:
    """As in Spark, booleans and numbers are accepted as text."""
    if not isinstance(raw, Mapping):
        raise ValueError('write a table, as { name = "value" }')
    texts: dict[str, str] = {}
    for name, each in raw.items():
        if not isinstance(each, str | int | float | bool):
            raise ValueError(f"{name} must be a text, a number, true or false")
        texts[str(name)] = str(each).lower() if isinstance(each, bool) else str(each)
    return texts


TEXT: Final = Reader("text", _text)
NAME: Final = Reader("name", _name)
FLAG: Final = Reader("true or false", _flag)
PATH: Final = Reader("path", _path, is_path=True)
NAMES: Final = Reader("names", _names)
TEXTS: Final = Reader("texts by name", _texts)
SETTINGS: Final = Reader("settings", _settings)


def whole(least: int = 0, most: int = 2**63 - 1) -> Reader[int]:
    def read(raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError("write a whole number")
        if not least <= raw <= most:
            raise ValueError(f"it must be from {least:,} to {most:,}")
        return raw

    return Reader("whole number", read)


def number(least: float, most: float) -> Reader[float]:
    def read(raw: Any) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ValueError("write a number")
        if not least <= raw <= most:
            raise ValueError(f"it must be from {least:,} to {most:,}")
        return float(raw)

    return Reader("number", read)


def one_of(*choices: str) -> Reader[str]:
    def read(raw: Any) -> str:
        if raw not in choices:
            raise ValueError(f"there is no such choice{nearest(str(raw), choices)}")
        return str(raw)

    return Reader(" | ".join(choices), read)


def table_of(kind: type[T]) -> Reader[T]:
    """A nested table."""

    def read(raw: Any) -> T:
        if isinstance(raw, kind):
            return raw
        if not isinstance(raw, Mapping):
            raise ValueError("write a table, as { key = value }")
        return kind(**arguments_of(kind, raw))

    return Reader("table", read, table=kind)


def arguments_of(kind: type, raw: Mapping[str, Any], extra: Iterable[str] = ()) -> dict[str, Any]:
    """The keys of a table as arguments of its dataclass; unknown and missing keys are errors."""
    fields = {key_of(each): each for each in dataclasses.fields(kind)}
    for key in raw:
        if key not in fields:
            raise DeclarationError(f"there is no key {key!r}{nearest(key, [*fields, *extra])}")
    for key, each in fields.items():
        if key not in raw and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise DeclarationError(f"{key} is missing: {each.metadata['doc']}")
    return {fields[key].name: each for key, each in raw.items()}


# Durations, sizes and timestamps

_SPOKEN: Final = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("millisecond", 1))


@dataclass(frozen=True, order=True, slots=True)
class Duration:
    """A duration. Its text is an interval in Spark's notation: `10 minutes`."""

    ms: int

    @property
    def seconds(self) -> float:
        return self.ms / 1000

    def __str__(self) -> str:
        if not self.ms:
            return "0 seconds"
        unit, size = next((unit, size) for unit, size in _SPOKEN if self.ms % size == 0)
        count = self.ms // size
        return f"{count} {unit}" + ("" if count == 1 else "s")


def read_duration(raw: Any) -> Duration:
    if isinstance(raw, Duration):
        return raw
    if isinstance(raw, timedelta):
        return Duration(round(raw.total_seconds() * 1000))
    span_ms = read_span(_text(raw).lower())
    if span_ms is None:
        raise ValueError('a length of time is written like "10 minutes", "1h30m" or "500 ms"')
    if span_ms > 3650 * 86_400_000:
        raise ValueError("it is longer than ten years")
    return Duration(span_ms)


_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def read_size(raw: Any) -> int:
    """A number of bytes, from a number or a text such as `128 MB` or `1GiB`."""
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    match = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None:
        raise ValueError('a size is written like "128 MB", "1 GiB" or 4096')
    factor: int = (1024 if match[3] else 1000) ** ("", "k", "m", "g", "t").index(match[2].lower())
    return round(float(match[1]) * factor)


def read_moment(raw: Any) -> datetime:
    """A UTC timestamp from a datetime or an ISO text. Without a zone it is UTC, whatever the machine's time zone."""
    if isinstance(raw, str):
        try:
            raw = datetime.fromisoformat(raw)
        except ValueError:
            raise ValueError('a moment is written like "2026-01-31T08:30:00Z"') from None
    if not isinstance(raw, datetime):
        raise ValueError('a moment is written like "2026-01-31T08:30:00Z"')
    return raw.replace(tzinfo=UTC) if raw.tzinfo is None else raw.astimezone(UTC)


DURATION: Final = Reader("length of time", read_duration)
SIZE: Final = Reader("size", read_size)
MOMENT: Final = Reader("moment", read_moment)

AVAILABLE_NOW: Final = "available_now"
CONTINUOUS: Final = "continuous"


def read_trigger(raw: Any) -> str:
    if raw in (AVAILABLE_NOW, CONTINUOUS):
        return str(raw)
    try:
        return str(read_duration(raw))
    except ValueError:
        raise ValueError(
            f'it is "{AVAILABLE_NOW}", "{CONTINUOUS}" or a length of time such as "10 seconds"'
        ) from None


TRIGGER: Final = Reader("trigger", read_trigger)
