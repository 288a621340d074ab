"""The short path for Produce reads, stamps and answers small requests exactly as the general path does."""

from __future__ import annotations

from struct import pack_into
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import Refused
from millpond.wire import messages as m
from millpond.wire.batch import CorruptBatch, batch_crc, check_batch, read_header
from millpond.wire.header import decode_request_header, encode_request_header, response_header
from millpond.wire.records import Record, encode_batch
from support.twins import compiled, needs

VERSIONS = st.integers(3, 13)
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=126)
CLIENTS = st.one_of(st.none(), st.text("abc-é", max_size=40))
Data = m.ProduceRequest.PartitionProduceData
Topic = m.ProduceRequest.TopicProduceData
SHORT_BYTES_MAX = 2 << 20
SOME_ID = UUID(int=7)


kernel = compiled("_fast")
pytestmark = needs(kernel)


def batch(*values: bytes, **fields: Any) -> bytes:
    return encode_batch([Record(at, 1_000 + at, None, value) for at, value in enumerate(values)], **fields)


def with_attributes(records: bytes, attributes: int) -> bytes:
    """The batch with other attributes and the matching CRC."""
    changed = bytearray(records)
    pack_into(">h", changed, 21, attributes)
    pack_into(">I", changed, 17, batch_crc(changed, 0, len(changed)))
    return bytes(changed)


def frame_of(
    records: bytes | None,
    version: int = 9,
    *,
    name: str = "pond",
    topic_id: UUID = SOME_ID,
    index: int = 0,
    acks: int = 1,
    client_id: str | None = "client",
    correlation_id: int = 5,
    **fields: Any,
) -> memoryview:
    data = Data(index=index, records=None if records is None else memoryview(records))
    topic = Topic(name=name, topic_id=topic_id, partition_data=[data])
    request = m.ProduceRequest(acks=acks, topic_data=[topic], **{"timeout_ms": 300, **fields})
    header = encode_request_header(0, version, correlation_id, client_id)
    return memoryview(bytearray(header + request.encode(version)))


@given(
    version=VERSIONS,
    name=NAMES,
    topic_id=st.uuids(),
    index=st.integers(0, 2**31 - 1),
    acks=st.sampled_from([-1, 1]),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    client_id=CLIENTS,
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    values=st.lists(st.binary(max_size=600), min_size=1, max_size=5),
    producer=st.one_of(
        st.just((-1, -1, -1)), st.tuples(st.integers(0, 2**62), st.just(3), st.integers(0, 2**31 - 1))
    ),
    codec=st.sampled_from([0, 1, 2, 3, 4]),
)
def test_reads_the_same_fields_as_the_general_path(
    version: int,
    name: str,
    topic_id: UUID,
    index: int,
    acks: int,
    timeout_ms: int,
    client_id: str | None,
    correlation_id: int,
    values: list[bytes],
    producer: tuple[int, int, int],
    codec: int,
) -> None:
    records = batch(
        *values, codec=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )
    frame = frame_of(
        records,
        version,
        name=name,
        topic_id=topic_id,
        index=index,
        acks=acks,
        timeout_ms=timeout_ms,
        client_id=client_id,
        correlation_id=correlation_id,
    )
    short = kernel.short_produce(frame)
    is_not_ascii = client_id is not None and not client_id.isascii()
    if is_not_ascii or (codec == 4 and version < 7):
        assert short is None
        return
    header, batch_header = decode_request_header(frame), read_header(records)
    assert (short.version, short.correlation_id) == (header.api_version, header.correlation_id)
    assert short.client_id == (None if client_id is None else client_id.encode())
    assert (short.acks, short.timeout_ms) == (acks, timeout_ms)
    assert short.key == (topic_id.bytes if version >= 13 else name.encode()) + index.to_bytes(4, "big")
    assert (short.records, short.size) == (records, len(records))
    assert short.record_count == batch_header.record_count == len(values)
    assert short.base_timestamp == batch_header.base_timestamp
    assert short.max_timestamp == batch_header.max_timestamp
    assert short.producer_id == batch_header.producer_id


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 400, *range(430, 480), 2_000, 16_000, 1 << 20])
def test_accepts_a_valid_batch_of_any_size(size: int) -> None:
    frame = frame_of(batch((bytes(range(256)) * 4096)[:size]))
    assert kernel.short_produce(frame) is not None
    frame[-4] ^= 1
    assert kernel.short_produce(frame) is None


def test_leaves_large_requests_to_the_general_path() -> None:
    around = len(frame_of(batch(b"x" * (1 << 20)))) - (1 << 20)
    most = SHORT_BYTES_MAX - around
    assert kernel.short_produce(frame_of(batch(b"x" * most))) is not None
    assert kernel.short_produce(frame_of(batch(b"x" * (most + 1)))) is None


@pytest.mark.parametrize("version", range(3, 14))
def test_leaves_requests_that_the_log_might_refuse_to_the_general_path(version: int) -> None:
    sound = batch(b"a", b"b")
    assert kernel.short_produce(frame_of(sound, version)) is not None
    for bit in range(16):
        changed = with_attributes(sound, 1 << bit if bit < 15 else -(1 << 15))
        is_taken = kernel.short_produce(frame_of(changed, version)) is not None
        # The codec is not checked against the bytes.
        is_codec = bit < 2 or (bit == 2 and version >= 7)
        assert is_taken == (is_codec or bit > 6), bit
    for other in (
        frame_of(None, version),
        frame_of(b"", version),
        frame_of(sound[:60], version),
        frame_of(sound[:-1], version),
        frame_of(sound + b"\0", version),
        frame_of(sound + sound, version),
        frame_of(sound, version, acks=0),
        frame_of(sound, version, acks=2),
        frame_of(sound, version, transactional_id="t"),
        frame_of(sound[:16] + b"\1" + sound[17:], version),
        memoryview(b""),
        memoryview(b"\0\0"),
    ):
        assert kernel.short_produce(other) is None
    for api_key, asked in ((1, version), (256, version), (0, 2), (0, 14), (0, -1)):
        frame = frame_of(sound, version)
        pack_into(">hh", frame, 0, api_key, asked)
        assert kernel.short_produce(frame) is None


@pytest.mark.parametrize(("count", "last_delta"), [(0, -1), (0, 0), (2, 0), (1, 1), (-1, -2), (2**31 - 1, 2**31 - 2)])
def test_leaves_impossible_counts_to_the_general_path(count: int, last_delta: int) -> None:
    changed = bytearray(batch(b"a"))
    pack_into(">i", changed, 57, count)
    pack_into(">i", changed, 23, last_delta)
    records = with_attributes(bytes(changed), 0)
    assert kernel.short_produce(frame_of(records)) is None


@given(
    version=VERSIONS,
    cut=st.integers(0, 400),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    mends_crc=st.booleans(),
    client_id=st.sampled_from([None, "", "client"]),
)
def test_every_accepted_request_is_valid_on_the_general_path(
    version: int, cut: int, flips: list[tuple[int, int]], mends_crc: bool, client_id: str | None
) -> None:
    records = batch(b"a" * 40, b"b")
    frame = frame_of(records, version, client_id=client_id)
    at = bytes(frame).index(records)
    broken = bytearray(frame)
    for position, value in flips:
        broken[position % len(broken)] = value
    if mends_crc:
        pack_into(">I", broken, at + 17, batch_crc(broken, at, len(records)))
    broken = broken[: len(broken) - min(cut, len(broken)) if cut < 30 else len(broken)]
    short = kernel.short_produce(memoryview(broken))
    if short is not None:
        header = decode_request_header(broken)
        assert (header.api_key, header.api_version) == (0, short.version)
        assert not check_batch(short.records).is_control
        if short.version >= 13 or short.key[:-4].isascii():
            decoded, end = m.ProduceRequest.decode(broken, short.version, header.body_position)
            assert end == len(broken)
            assert decoded.transactional_id is None
            assert bytes(decoded.topic_data[0].partition_data[0].records) == bytes(short.records)


@given(flips=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), min_size=1, max_size=4))
def test_accepts_no_batch_that_the_log_would_refuse(flips: list[tuple[int, int]]) -> None:
    changed = bytearray(batch(b"a" * 40, b"b"))
    for position, value in flips:
        changed[position % len(changed)] = value
    pack_into(">I", changed, 17, batch_crc(changed, 0, len(changed)))
    short = kernel.short_produce(frame_of(bytes(changed)))
    try:
        header = check_batch(changed)
        is_sound = header.size == len(changed)
    except (CorruptBatch, Refused):
        is_sound = False
    assert short is None or is_sound


@given(
    version=VERSIONS,
    name=NAMES,
    topic_id=st.uuids(),
    index=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(0, 2**31 - 1),
    append_time_ms=st.integers(-1, 2**62),
    start_offset=st.integers(0, 2**63 - 1),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
)
def test_stamps_and_answers_exactly_as_the_general_path(
    version: int,
    name: str,
    topic_id: UUID,
    index: int,
    offset: int,
    leader_epoch: int,
    append_time_ms: int,
    start_offset: int,
    correlation_id: int,
) -> None:
    frame = frame_of(batch(b"a"), version, name=name, topic_id=topic_id, index=index, correlation_id=correlation_id)
    before = bytes(frame)
    short = kernel.short_produce(frame)
    short.stamp(offset, leader_epoch)
    header = check_batch(short.records)
    assert (header.base_offset, header.leader_epoch) == (offset, leader_epoch)
    at = len(before) - len(short.records) - (3 if version >= 9 else 0)
    changed = {place for place, (was, now) in enumerate(zip(before, bytes(frame), strict=True)) if was != now}
    assert changed <= {*range(at, at + 8), *range(at + 12, at + 16)}
    part = m.ProduceResponse.PartitionProduceResponse(
        index=index, base_offset=offset, log_append_time_ms=append_time_ms, log_start_offset=start_offset
    )
    topic = m.ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[part])
    general = m.ProduceResponse(responses=[topic]).encode(version)
    body = response_header(0, version, correlation_id) + general
    assert short.reply(offset, append_time_ms, start_offset) == len(body).to_bytes(4, "big") + body
