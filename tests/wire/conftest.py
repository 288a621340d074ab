"""Random values of any message in any version, from a seed; small messages that show one thing each."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages, model, notation
from support.seeds import FIRST

RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
CODES = [int(code) for code in ErrorCode]
TIME_MAX_MS = 1 << 40
PRIVATE_TAGS_FROM = 10_000

ALL_TYPES = """
data All  versions 0-1  flexible 1+
    a_bool     bool
    an_int8    int8
    an_int16   int16
    a_uint16   uint16
    an_int32   int32
    a_uint32   uint32
    an_int64   int64
    a_float64  float64
    a_uuid     uuid
    a_string   string
    some_null  string?     = null
    a_bytes    bytes
    null_bytes bytes?
    an_array   []int16
    booleans   []bool
    strings    []string
    uuids      []uuid
    blobs      []bytes
    one        One
        x      int8
    maybe      Maybe?      = null
        y      int8
    many       []Many?
        z      string
"""

TAGGED = """
data Tagged  versions 0-1  flexible 1+
    plain      int8
    text       string?    1+  tag 3  = null
    number     int32      1+  tag 1  = -1
    items      []Item     1+  tag 2
        name   string
        deep   int8       tag 0
    place      Place      1+  tag 4
        x      int32      = -1
        y      int32      = -1
    perhaps    Perhaps?   1+  tag 5  = null
        z      int8
    where      uuid       1+  tag 6
    flag       bool       1+  tag 7  = true
"""

IGNORING = """
data Ignoring  versions 0-2
    old      int32    0
    timeout  int32    1+  = 60  ignorable
    only     bool     2
    names    []string?  2
    place    Place    2
        x    int32    = -1
    id       uuid     2
    entry    []Entry
        late int8     1+
        on   int8
"""

RECORDS = """
data Records  versions 0-1  flexible 1+
    first   records?
    number  int8
    second  records
"""


def is_private(field: notation.Field) -> bool:
    """Whether only Millpond knows this field."""
    return field.tag is not None and field.tag >= PRIVATE_TAGS_FROM


class RandomMessages:
    """Fills every field that a version has. Codes and times stay in the ranges that other implementations accept."""

    def __init__(self, seed: str, *, with_private: bool = True) -> None:
        self.with_private = with_private
        self.random = random.Random(f"{seed} {FIRST}" if FIRST else seed)

    def message(self, cls: type[messages.Message], version: int) -> Any:
        return self._struct(cls, cls, cls._schema.root, version)

    def _struct(self, root: Any, cls: Any, struct: notation.Struct, version: int) -> Any:
        made = cls()
        for field in struct.fields:
            skip_tagged = field.tag is not None and self.random.random() < 0.4
            if is_private(field) and not self.with_private:
                continue
            if field.versions.has(version) and not skip_tagged:
                setattr(made, field.name, self._value(root, field, version))
        return made

    def _value(self, root: Any, field: notation.Field, version: int) -> Any:
        if field.is_nullable(version) and self.random.random() < 0.25:
            return None
        if field.is_array:
            return [self._element(root, field, version) for _ in range(self._count(field))]
        return self._element(root, field, version)

    def _count(self, field: notation.Field) -> int:
        # Past 126 elements the count of a flexible array takes two bytes.
        if field.struct is None and self.random.random() < 0.05:
            return self.random.randint(125, 140)
        return self.random.choice((0, 1, 1, 2, 3))

    def _element(self, root: Any, field: notation.Field, version: int) -> Any:
        draw = self.random
        if field.struct is not None:
            return self._struct(root, getattr(root, field.struct.name), field.struct, version)
        if "error_code" in field.name:
            return draw.choice(CODES)
        match field.type:
            case "bool":
                return draw.random() < 0.5
            case "uint16" | "uint32":
                return draw.randrange(1 << int(field.type[4:]))
            case "float64":
                return draw.uniform(-1e9, 1e9)
            case "uuid":
                return UUID(int=draw.choice((0, draw.getrandbits(128))))
            case "string":
                return "".join(draw.choice("az09.-é漢😀") for _ in range(self._length()))
            case "bytes" | "records":
                return draw.randbytes(self._length())
            case "int64" if field.name.endswith(("_ms", "time", "timestamp")):
                return draw.randrange(TIME_MAX_MS)
            case _:
                bound = 1 << RANGES[field.type]
                return draw.choice((0, -1, bound - 1, -bound, draw.randrange(-bound, bound)))

    def _length(self) -> int:
        return self.random.choice((0, 1, 5, 12, 130)) if self.random.random() < 0.5 else self.random.randrange(40)


@pytest.fixture
def random_messages() -> type[RandomMessages]:
    return RandomMessages


def build(text: str) -> Any:
    (message,) = notation.parse(text)
    return model.build(message)


@pytest.fixture
def all_types() -> Any:
    return build(ALL_TYPES)


@pytest.fixture
def tagged() -> Any:
    return build(TAGGED)


@pytest.fixture
def ignoring() -> Any:
    return build(IGNORING)


@pytest.fixture
def with_records() -> Any:
    return build(RECORDS)
