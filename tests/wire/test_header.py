from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from millpond.base.errors import MalformedMessage
from millpond.wire import header, messages
from millpond.wire.header import (
    NAMES,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    response_header,
)

APIS = st.sampled_from(sorted(NAMES)).flatmap(
    lambda key: st.tuples(st.just(key), st.integers(*messages.request_class(key).VERSIONS))
)


def test_the_table_agrees_with_the_schemas() -> None:
    for key, name in NAMES.items():
        for cls in (messages.request_class(key), messages.response_class(key)):
            assert key == cls.API_KEY
            assert cls.__name__ in (f"{name}Request", f"{name}Response")
            flexible_from = header.NEVER if cls.FLEXIBLE_FROM is None else cls.FLEXIBLE_FROM
            assert header.FLEXIBLE_FROM[key] == flexible_from
    requests = {name for name in messages.names() if name.endswith("Request")}
    assert requests == {f"{name}Request" for name in NAMES.values()}


@given(api=APIS, correlation_id=st.integers(-(1 << 31), (1 << 31) - 1), client_id=st.none() | st.text(max_size=40))
def test_request_header_as_kio_writes_it(api: tuple[int, int], correlation_id: int, client_id: str | None) -> None:
    key, version = api
    data = encode_request_header(key, version, correlation_id, client_id)
    kio = KioHeader2 if version >= header.FLEXIBLE_FROM[key] else KioHeader1
    written = io.BytesIO()
    entity_writer(kio)(
        written,
        kio(
            request_api_key=i16(key),
            request_api_version=i16(version),
            correlation_id=i32(correlation_id),
            client_id=client_id,
        ),
    )
    assert data == written.getvalue()
    body = data + b"body"
    for frame in (body, memoryview(body)):
        assert decode_request_header(frame) == RequestHeader(key, version, correlation_id, client_id, len(data))


@given(api=APIS, correlation_id=st.integers(-(1 << 31), (1 << 31) - 1))
def test_response_header_comes_back(api: tuple[int, int], correlation_id: int) -> None:
    data = response_header(*api, correlation_id)
    assert decode_response_header(memoryview(data + b"body"), *api) == (correlation_id, len(data))


def test_response_header_bytes() -> None:
    assert response_header(1, 11, 7) == b"\0\0\0\7"
    assert response_header(1, 12, 7) == b"\0\0\0\7\0"
    assert response_header(17, 1, 7) == b"\0\0\0\7"


def test_api_versions_never_has_response_tags() -> None:
    assert response_header(18, 4, 7) == b"\0\0\0\7"
    assert decode_response_header(b"\0\0\0\7\0\0", 18, 4) == (7, 4)


def test_unknown_versions_of_api_versions_are_read_as_flexible() -> None:
    assert decode_request_header(b"\0\x12\0\x63\0\0\0\1\0\1x\0") == RequestHeader(18, 99, 1, "x", 12)


def test_unknown_apis_are_read_far_enough_to_refuse_them() -> None:
    assert decode_request_header(b"\x0f\xff\0\0\0\0\0\1\xff\xff") == RequestHeader(0x0FFF, 0, 1, None, 10)


def test_unknown_tags_are_skipped() -> None:
    assert decode_request_header(b"\0\1\0\x0c\0\0\0\1\xff\xff\2\0\3abc\x05\0").body_position == 18
    assert decode_response_header(b"\0\0\0\1\1\x09\2ab", 1, 12) == (1, 9)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\1\0\1\0\0\0\1",
        b"\0\1\0\1\0\0\0\1\0\5abc",
        b"\0\1\0\1\0\0\0\1\xff\xfe",
        b"\0\1\0\1\0\0\0\1\0\1\xff",
        b"\0\1\0\x0c\0\0\0\1\xff\xff",
        b"\0\1\0\x0c\0\0\0\1\xff\xff\xff\xff\xff\xff\x0f",
        b"\0\1\0\x0c\0\0\0\1\xff\xff\1\0\x7f",
    ],
)
def test_malformed_request_headers(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match="request header"):
        decode_request_header(frame)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1\0\x05a"])
def test_malformed_response_headers(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match="response header"):
        decode_response_header(frame, 1, 12)


def test_a_header_of_very_many_tagged_fields_is_refused_before_they_are_read() -> None:
    head = encode_request_header(3, 12, 1, "me")[:-1]
    assert decode_request_header(head + b"\x64" + b"\1\0" * 100).body_position == len(head) + 201
    with pytest.raises(MalformedMessage, match="more items"):
        decode_request_header(head + b"\x65" + b"\1\0" * 101)
