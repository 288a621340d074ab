"""The generated code, on small schemas made for the purpose."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import MalformedMessage
from millpond.wire import model, notation
from millpond.wire.decoding import DecoderGenerator
from millpond.wire.encoding import EncoderGenerator

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


def build(text: str) -> Any:
    (message,) = notation.parse(text)
    return model.build(message)


ALL_BYTES_V0 = (
    b"\1"
    b"\xff"
    b"\xff\xfe"
    b"\xff\xff"
    b"\0\0\0\5"
    b"\xff\xff\xff\xff"
    b"\xff\xff\xff\xff\xff\xff\xff\xff"
    + b"\x3f\xf0\0\0\0\0\0\0"
    + bytes(15)
    + b"\7"
    + b"\0\2hi"
    + b"\xff\xff"
    + b"\0\0\0\1b"
    + b"\xff\xff\xff\xff"
    + b"\0\0\0\2\0\1\0\2"
    + b"\0\0\0\2\1\0"
    + b"\0\0\0\1\0\1s"
    + b"\0\0\0\1"
    + bytes(15)
    + b"\x08"
    + b"\0\0\0\1\0\0\0\1c"
    + b"\3"
    + b"\1\4"
    + b"\0\0\0\1\0\1m"
)
ALL_BYTES_V1 = (
    b"\1"
    b"\xff"
    b"\xff\xfe"
    b"\xff\xff"
    b"\0\0\0\5"
    b"\xff\xff\xff\xff"
    b"\xff\xff\xff\xff\xff\xff\xff\xff"
    + b"\x3f\xf0\0\0\0\0\0\0"
    + bytes(15)
    + b"\7"
    + b"\3hi"
    + b"\0"
    + b"\2b"
    + b"\0"
    + b"\3\0\1\0\2"
    + b"\3\1\0"
    + b"\2\2s"
    + b"\2"
    + bytes(15)
    + b"\x08"
    + b"\2\2c"
    + b"\3\0"
    + b"\1\4\0"
    + b"\2\2m\0"
    + b"\0"
)


@pytest.mark.parametrize(("version", "data"), [(0, ALL_BYTES_V0), (1, ALL_BYTES_V1)])
def test_every_type(version: int, data: bytes) -> None:
    cls = build(ALL_TYPES)
    value = cls(
        a_bool=True,
        an_int8=-1,
        an_int16=-2,
        a_uint16=0xFFFF,
        an_int32=5,
        a_uint32=0xFFFFFFFF,
        an_int64=-1,
        a_float64=1.0,
        a_uuid=UUID(int=7),
        a_string="hi",
        a_bytes=b"b",
        null_bytes=None,
        an_array=[1, 2],
        booleans=[True, False],
        strings=["s"],
        uuids=[UUID(int=8)],
        blobs=[b"c"],
        one=cls.One(x=3),
        maybe=cls.Maybe(y=4),
        many=[cls.Many(z="m")],
    )
    assert value.encode(version) == data
    assert cls.decode(data, version) == (value, len(data))
    assert cls.decode(b"???" + data, version, 3) == (value, len(data) + 3)


@pytest.mark.parametrize("version", [0, 1])
def test_nulls(version: int) -> None:
    cls = build(ALL_TYPES)
    value = cls(some_null=None, null_bytes=None, maybe=None, many=None)
    assert cls.decode(value.encode(version), version)[0] == value


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 200, 16_383, 16_384, 32_767])
def test_lengths_around_the_edges_of_varints(size: int) -> None:
    cls = build(ALL_TYPES)
    value = cls(a_string="x" * size, a_bytes=b"y" * size, an_array=list(range(size)), strings=["z"] * size)
    for version in (0, 1):
        assert cls.decode(value.encode(version), version)[0] == value


@pytest.mark.parametrize("version", [0, 1])
def test_strings_that_are_too_long(version: int) -> None:
    cls = build(ALL_TYPES)
    with pytest.raises(ValueError, match=f"All v{version} .*a_string"):
        cls(a_string="x" * 32_768).encode(version)
    too_long = cls(a_bytes=b"x" * 32_768).encode(1)
    place = too_long.index(b"\x81\x80\x02x")
    with pytest.raises(MalformedMessage, match=r"a_string: asks for 32768"):
        cls.decode(too_long[: place - 2] + too_long[place:], 1)


def test_tagged_fields_are_sent_only_when_they_differ() -> None:
    cls = build(TAGGED)
    assert cls(plain=9).encode(1) == b"\x09\0"
    assert cls(plain=9, number=5).encode(1) == b"\x09\1\1\4\0\0\0\5"


def test_tagged_fields_go_in_the_order_of_their_tags() -> None:
    cls = build(TAGGED)
    value = cls(text="t", number=0, items=[cls.Item(name="n", deep=4)], place=cls.Place(x=1), flag=False)
    assert value.encode(1) == (
        b"\0\5"
        + b"\1\4\0\0\0\0"
        + b"\2\7\2\2n\1\0\1\4"
        + b"\3\2\2t"
        + b"\4\x09\0\0\0\1\xff\xff\xff\xff\0"
        + b"\7\1\0"
    )
    assert cls.decode(value.encode(1), 1)[0] == value
    value = cls(perhaps=cls.Perhaps(z=3), where=UUID(int=1))
    assert value.encode(1) == b"\0\2" + b"\5\3\1\3\0" + b"\6\x10" + bytes(15) + b"\1"
    assert cls.decode(value.encode(1), 1)[0] == value


def test_unknown_tags_are_skipped() -> None:
    cls = build(TAGGED)
    data = b"\x09\3" + b"\0\2xx" + b"\1\4\0\0\0\5" + b"\x80\1\1x"
    assert cls.decode(data, 1) == (cls(plain=9, number=5), len(data))


@pytest.mark.parametrize("data", [b"\0\1\1\3\0\0\0\5", b"\0\1\1\5\0\0\0\5\0", b"\0\1\2\1\1\0"])
def test_a_tagged_field_must_be_as_long_as_it_says(data: bytes) -> None:
    cls = build(TAGGED)
    if data.endswith(b"\1\0"):
        assert cls.decode(data, 1)[0] == cls(items=[])
    else:
        with pytest.raises(MalformedMessage, match="number: ends at"):
            cls.decode(data, 1)


def test_fields_that_a_version_lacks() -> None:
    cls = build(IGNORING)
    assert cls(timeout=5).encode(0) == cls().encode(0) == b"\0\0\0\0\0\0\0\0"
    assert cls.decode(b"\0\0\0\1\0\0\0\0", 0)[0] == cls(old=1, timeout=60)
    assert cls(names=[], place=cls.Place(), id=UUID(int=0)).encode(1) == b"\0\0\0\x3c\0\0\0\0"


@pytest.mark.parametrize(
    ("field", "value"),
    [("old", 1), ("only", True), ("names", ["a"]), ("names", None), ("id", UUID(int=1))],
)
def test_values_that_would_be_lost_are_refused(field: str, value: object) -> None:
    cls = build(IGNORING)
    with pytest.raises(ValueError, match=f"Ignoring v1 {field}: this version cannot carry"):
        cls(**{field: value}).encode(1)


def test_structures_that_would_be_lost_are_refused() -> None:
    cls = build(IGNORING)
    with pytest.raises(ValueError, match="Ignoring v1 place"):
        cls(place=cls.Place(x=3)).encode(1)
    with pytest.raises(ValueError, match=r"Ignoring v0 entry\.late"):
        cls(entry=[cls.Entry(late=1)]).encode(0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"a_string": None}, "a_string"),
        ({"a_string": b"x"}, "a_string"),
        ({"an_array": [1 << 40]}, "an_array"),
        ({"an_int8": 300}, "a_bool to a_string"),
        ({"a_uuid": "no"}, "a_bool to a_string"),
        ({"one": None}, "one"),
        ({"strings": [None]}, "strings"),
        ({"a_string": "\ud800"}, "a_string"),
        ({"many": [3]}, "many.z"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, object], field: str) -> None:
    for version in (0, 1):
        with pytest.raises(ValueError, match=f"All v{version} {field}"):
            build(ALL_TYPES)(**values).encode(version)


def test_records_are_parts_and_are_not_copied() -> None:
    cls = build(RECORDS)
    first, second = b"first", [memoryview(b"se"), b"cond"]
    parts = cls(first=first, number=7, second=second).encode_parts(0)
    assert parts == [b"\0\0\0\5", b"first", b"\7\0\0\0\6", b"se", b"cond"]
    assert parts[1] is first
    assert parts[3] is second[0]
    assert cls(first=first, number=7, second=second).encode_parts(1) == [
        b"\6",
        b"first",
        b"\7\7",
        b"se",
        b"cond",
        b"\0",
    ]
    assert cls(first=None, second=b"").encode(0) == b"\xff\xff\xff\xff\0\0\0\0\0"
    assert cls(first=b"", second=[]).encode(1) == b"\1\0\1\0"


def test_records_are_decoded_as_views_of_the_buffer() -> None:
    cls = build(RECORDS)
    buffer = bytearray(b"\6first\7\7second\0")
    value, position = cls.decode(buffer, 1)
    assert position == len(buffer)
    assert isinstance(value.first, memoryview)
    buffer[1:6] = b"FIRST"
    assert bytes(value.first) == b"FIRST"
    value.first.release()
    value.second.release()


def test_neighbouring_fixed_fields_are_read_as_one() -> None:
    (message,) = notation.parse(ALL_TYPES)
    source = DecoderGenerator(message, 0).generate()
    first_read = next(line for line in source.lines if "unpack_from" in line)
    assert first_read.count("o0.") == 8  # All fixed fields but the uuid, which is turned into an object afterwards.
    assert len(source.lines) == len(source.fields)
    source = EncoderGenerator(message, 0).generate()
    assert sum("a_bool" in line and "an_int64" in line for line in source.lines) == 1
