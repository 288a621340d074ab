"""Infer a schema in Spark's notation from a sample of values.

A field with values of several kinds becomes a string, which accepts any JSON as text, and gets a comment.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from millpond.columns.json_rows import iso_microseconds

CERTAIN_RECORDS: Final = 100
"""From this many records on, a field that all of them have is required."""

MAP_KEYS_MIN: Final = 50
"""An object with more distinct names than this is a map: the names are data."""

FIELDS_MAX: Final = 1_000
DEPTH_MAX: Final = 16
LONG_BITS: Final = 64
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OF_TIME: Final = re.compile(
    r"(?:^|_)(?:at|date|time|timestamp|ts|when|created|updated)(?:_?(?:ms|us|ns|s|micros|millis))?$"
    r"|[a-z](?:At|Date|Time|Timestamp|Ms|Millis)$"
)
"""Fields with these names are times, if their numbers allow it."""
_YEAR_2000_SECONDS: Final = 946_684_800
_YEAR_2100_SECONDS: Final = 4_102_444_800
_KINDS: Final = {
    "bool": "a truth value",
    "int": "a whole number",
    "huge": "a number of more than 64 bits",
    "float": "a number",
    "date": "a date",
    "time": "a time",
    "text": "a text",
    "object": "an object",
    "array": "an array",
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    is_required: bool = False
    comment: str = ""

    def __str__(self) -> str:
        required = " not null" if self.is_required else ""
        comment = f" comment '{_escaped(self.comment)}'" if self.comment else ""
        return f"{_quoted(self.name)} {self.type}{required}{comment}"


@dataclass(frozen=True, slots=True)
class Inferred:
    """The result of an inference."""

    columns: tuple[Column, ...]
    records: int
    """Sampled values, without tombstones."""
    strangers: int
    """Sampled values that are not JSON objects."""
    prefixed: int
    """Sampled values with a schema registry prefix."""


def infer(values: Iterable[bytes | None]) -> Inferred:
    whole = _Shape()
    records = strangers = prefixed = 0
    for value in values:
        if value is None:
            continue
        records += 1
        decoded = _decoded(value)
        if isinstance(decoded, dict):
            whole.take(decoded, 0)
        else:
            strangers += 1
            prefixed += len(value) > 5 and value[0] == 0
    return Inferred(tuple(_columns(whole)), records, strangers, prefixed)


def _decoded(value: bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True)
class _Shape:
    """Everything seen at one path."""

    kinds: Counter[str] = field(default_factory=Counter)
    nulls: int = 0
    fields: dict[str, _Shape] = field(default_factory=dict)
    element: _Shape | None = None
    is_epoch: bool = True
    """Every number so far could be a time since 1970."""

    @property
    def seen(self) -> int:
        return self.kinds.total()

    def take(self, value: Any, depth: int) -> None:
        if value is None:
            self.nulls += 1
            return
        kind = _kind_of(value)
        self.kinds[kind] += 1
        if kind == "int":
            self.is_epoch = self.is_epoch and _is_epoch(value)
        elif kind in ("float", "huge"):
            self.is_epoch = False
        if depth >= DEPTH_MAX:
            return
        if kind == "object":
            for name, each in value.items():
                if name in self.fields or (len(self.fields) < FIELDS_MAX and _is_text(name)):
                    self.fields.setdefault(name, _Shape()).take(each, depth + 1)
        elif kind == "array":
            self.element = self.element or _Shape()
            for each in value:
                self.element.take(each, depth + 1)


def _is_text(name: str) -> bool:
    """JSON allows a lone surrogate in a name, which UTF-8 and therefore a schema cannot contain."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int" if value.bit_length() < LONG_BITS else "huge"
        case float():
            return "float"
        case str():
            return _kind_of_text(value)
        case dict():
            return "object"
    return "array"


def _kind_of_text(text: str) -> str:
    try:
        iso_microseconds(text)
    except (ValueError, OverflowError):
        return "text"
    return "date" if _DAY.fullmatch(text) else "time"


def _is_epoch(number: int) -> bool:
    return any(_YEAR_2000_SECONDS <= number / unit < _YEAR_2100_SECONDS for unit in (1, 1e3, 1e6, 1e9))


def _columns(whole: _Shape) -> Iterator[Column]:
    lower: set[str] = set()
    records = whole.kinds["object"]
    for name, shape in whole.fields.items():
        if name.lower() in lower or not name:
            # Names are case-insensitive in Spark.
            continue
        lower.add(name.lower())
        is_there = shape.seen == records and not shape.nulls
        yield Column(
            name, _type_of(name, shape), is_there and records >= CERTAIN_RECORDS, "; ".join(_doubts(name, shape))
        )


def _type_of(name: str, shape: _Shape) -> str:
    kinds = set(shape.kinds)
    if kinds == {"bool"}:
        return "boolean"
    if kinds == {"int"}:
        return "timestamp" if shape.is_epoch and _OF_TIME.search(name) else "long"
    if kinds and kinds <= {"int", "float"}:
        return "double"
    if kinds == {"date"}:
        return "date"
    if kinds and kinds <= {"time", "date"}:
        return "timestamp"
    if kinds == {"array"}:
        return f"array<{_type_of(name, shape.element or _Shape())}>"
    if kinds == {"object"}:
        return _struct_of(shape)
    return "string"


def _struct_of(shape: _Shape) -> str:
    if not shape.fields:
        return "string"
    if len(shape.fields) >= MAP_KEYS_MIN:
        inner = {_type_of(name, each) for name, each in shape.fields.items()}
        if len(inner) == 1:
            return f"map<string,{inner.pop()}>"
    once = {name.lower(): name for name in reversed(shape.fields) if name}
    names = [name for name in shape.fields if once.get(name.lower()) == name]
    return f"struct<{','.join(f'{_quoted(name)}:{_type_of(name, shape.fields[name])}' for name in names)}>"


def _doubts(path: str, shape: _Shape) -> Iterator[str]:
    """Fields at or below this path that have no single kind."""
    if not shape.seen:
        yield f"{path}: always null or empty"
    elif _type_of(path, shape) == "string" and set(shape.kinds) != {"text"}:
        yield f"{path}: " + ", ".join(f"{_KINDS[kind]} {times:,} times" for kind, times in shape.kinds.most_common())
    elif shape.element is not None:
        yield from _doubts(f"{path}[]", shape.element)
    elif len(shape.fields) < MAP_KEYS_MIN:
        for name, each in shape.fields.items():
            yield from _doubts(f"{path}.{name}", each)


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
