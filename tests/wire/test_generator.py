"""The generated code, on small schemas made for the purpose."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import MalformedMessage
from millpond.wire.decoder import DecoderGenerator
from millpond.wire.encoder import EncoderGenerator

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
def test_every_type(version: int, data: bytes, all_types: Any) -> None:
    value = all_types(
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
        one=all_types.One(x=3),
        maybe=all_types.Maybe(y=4),
        many=[all_types.Many(z="m")],
    )
    assert value.encode(version) == data
    assert all_types.decode(data, version) == (value, len(data))
    assert all_types.decode(b"???" + data, version, 3) == (value, len(data) + 3)


@pytest.mark.parametrize("version", [0, 1])
def test_nulls(version: int, all_types: Any) -> None:
    value = all_types(some_null=None, null_bytes=None, maybe=None, many=None)
    assert all_types.decode(value.encode(version), version)[0] == value


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 200, 16_383, 16_384, 32_767])
def test_lengths_around_the_edges_of_varints(size: int, all_types: Any) -> None:
    value = all_types(a_string="x" * size, a_bytes=b"y" * size, an_array=list(range(size)), strings=["z"] * size)
    for version in (0, 1):
        assert all_types.decode(value.encode(version), version)[0] == value


@pytest.mark.parametrize("version", [0, 1])
def test_strings_that_are_too_long(version: int, all_types: Any) -> None:
    with pytest.raises(ValueError, match=f"All v{version} .*a_string"):
        all_types(a_string="x" * 32_768).encode(version)
    too_long = all_types(a_bytes=b"x" * 32_768).encode(1)
    position = too_long.index(b"\x81\x80\x02x")
    with pytest.raises(MalformedMessage, match=r"a_string: announces 32768"):
        all_types.decode(too_long[: position - 2] + too_long[position:], 1)


def test_neighbouring_fixed_fields_are_read_as_one(all_types: Any) -> None:
    message = all_types._schema
    source = DecoderGenerator(message, 0).generate()
    first_read = next(line for line in source.lines if "unpack_from" in line)
    assert first_read.count("o0.") == 8  # All fixed fields but the uuid, which is turned into an object afterwards.
    assert len(source.lines) == len(source.fields)
    source = EncoderGenerator(message, 0).generate()
    assert sum("a_bool" in line and "an_int64" in line for line in source.lines) == 1
