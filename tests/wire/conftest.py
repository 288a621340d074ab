"""Random messages; small messages that show one thing each."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.wire import model, notation
from support.random_messages import RandomMessages

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
