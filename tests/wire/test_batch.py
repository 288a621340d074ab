"""The batch header: read, checked and patched, with kafka-python as the other opinion."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from millpond.base.errors import ErrorCode, MalformedMessage, Refused, RemoteError
from millpond.wire import batch
from millpond.wire.batch import CorruptBatch, check_batch, read_header, walk


def made(count: int = 3, *, codec: int = 0, transactional: bool = False, base_sequence: int = 7) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=1 if transactional else 0,
        producer_id=4242,
        producer_epoch=5,
        base_sequence=base_sequence,
        batch_size=1 << 20,
    )
    for offset in range(count):
        builder.append(offset, 1_000 + offset, b"key", b"value %d" % offset, [("h", b"x")])
    return bytearray(builder.build())


def with_field(raw: bytearray, at: int, layout: str, value: int, *, fix_crc: bool = True) -> bytearray:
    changed = bytearray(raw)
    struct.pack_into(layout, changed, at, value)
    if fix_crc:
        struct.pack_into(">I", changed, 17, batch.batch_crc(changed, 0, len(changed)))
    return changed


def test_header_fields_are_those_of_another_implementation() -> None:
    raw = made(transactional=True)
    header = check_batch(raw)
    other = DefaultRecordBatch(bytes(raw))
    assert header.size == len(raw)
    assert header.base_offset == other.base_offset
    assert header.crc == other.crc
    assert header.attributes == other.attributes
    assert header.last_offset_delta == other.last_offset_delta == 2
    assert header.base_timestamp == 1_000
    assert header.max_timestamp == other.max_timestamp == 1_002
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4242, 5, 7)
    assert header.last_sequence == 9
    assert header.record_count == 3
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_append_time
    assert header.delete_horizon_ms is None


def test_gzip_is_seen_in_the_attributes() -> None:
    assert check_batch(made(50, codec=1)).codec == 1


def test_sequence_numbers_wrap() -> None:
    assert check_batch(made(base_sequence=(1 << 31) - 2)).last_sequence == 0
    assert check_batch(made(base_sequence=-1)).last_sequence == -1


def test_a_short_header_is_malformed() -> None:
    raw = made()
    with pytest.raises(MalformedMessage):
        read_header(raw[:60])
    with pytest.raises(MalformedMessage):
        read_header(raw, len(raw) - 60)
    with pytest.raises(MalformedMessage):
        read_header(raw, -1)
    assert read_header(b"x" * 5 + raw, 5) == read_header(raw)


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_refused_in_words(magic: int) -> None:
    with pytest.raises(Refused, match=f"v{magic} is not supported") as caught:
        check_batch(bytes(16) + bytes([magic]) + bytes(9))
    assert caught.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        check_batch(with_field(made(), 21, ">h", 5))
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("at", "layout", "value", "fix_crc"),
    [
        (16, ">b", 3, True),  # magic
        (8, ">i", 48, True),  # shorter than a header
        (8, ">i", -1, True),
        (8, ">i", (1 << 31) - 1, True),  # longer than the bytes
        (17, ">I", 1, False),  # CRC
        (61, ">B", 99, False),  # a byte of the records
    ],
)
def test_broken_bytes_are_corrupt(at: int, layout: str, value: int, fix_crc: bool) -> None:
    raw = with_field(made(), at, layout, value, fix_crc=fix_crc)
    with pytest.raises(CorruptBatch):
        check_batch(raw)
    with pytest.raises(CorruptBatch):
        check_batch(raw, compacted=True)


def test_the_end_given_is_the_end() -> None:
    raw = made()
    assert check_batch(bytes(9) + raw + bytes(9), 9, 9 + len(raw)).size == len(raw)
    with pytest.raises(CorruptBatch):
        check_batch(bytes(9) + raw + bytes(9), 9, 8 + len(raw))
    for end in (0, 16, 17, 60):
        with pytest.raises(CorruptBatch):
            check_batch(raw, 0, end)
    with pytest.raises(CorruptBatch):
        check_batch(raw[:40], 0, len(raw))


@pytest.mark.parametrize(("count", "last_delta"), [(0, -1), (0, 2), (2, 2), (4, 2), (-1, 2), (3, -5)])
def test_a_producer_gives_a_record_for_every_offset(count: int, last_delta: int) -> None:
    raw = with_field(with_field(made(), 57, ">i", count), 23, ">i", last_delta)
    with pytest.raises(Refused) as caught:
        check_batch(raw)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_compacted_batch_may_have_lost_records(count: int) -> None:
    raw = with_field(made(), 57, ">i", count)
    assert check_batch(raw, compacted=True).record_count == count


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [(57, ">i", 4), (57, ">i", -1), (23, ">i", -1), (0, ">q", -1), (0, ">q", (1 << 63) - 2)],
)
def test_a_compacted_batch_has_no_impossible_counts(at: int, layout: str, value: int) -> None:
    with pytest.raises(CorruptBatch):
        check_batch(with_field(made(), at, layout, value), compacted=True)


def test_walk_gives_whole_batches_and_stops_at_a_partial_tail() -> None:
    first, second = made(1), made(2)
    whole = first + second
    for cut in range(len(whole) + 1):
        expected = [0] * (cut >= len(first)) + [len(first)] * (cut >= len(whole))
        assert [position for position, _ in walk(whole[:cut])] == expected
        assert [position for position, _ in walk(whole, 0, cut)] == expected
    assert [header.record_count for _, header in walk(whole)] == [1, 2]
    assert [header.record_count for _, header in walk(whole, len(first))] == [2]
    assert [header.record_count for _, header in walk(whole, len(first), len(whole) + 99)] == [2]
    assert len(list(walk(whole + first[:20], 0, len(whole) + 99))) == 2


@pytest.mark.parametrize(("at", "layout", "value"), [(8, ">i", 0), (8, ">i", -12), (8, ">i", 48), (16, ">b", 1)])
def test_walk_always_makes_progress(at: int, layout: str, value: int) -> None:
    with pytest.raises(CorruptBatch):
        list(walk(with_field(made(), at, layout, value)))


def test_offset_and_epoch_are_patched_outside_the_crc() -> None:
    raw = bytearray(b"..") + made()
    batch.patch_offset_and_epoch(memoryview(raw), 2, 1 << 40, 17)
    header = check_batch(raw, 2)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 17)
    assert header.last_offset == (1 << 40) + 2
    assert header.next_offset == (1 << 40) + 3
    before = read_header(made())
    assert header._replace(base_offset=0, leader_epoch=before.leader_epoch) == before


def test_append_time_is_patched_with_its_crc() -> None:
    raw = bytearray(b"..") + made() + bytearray(b"..")
    batch.patch_append_time(memoryview(raw), 2, 5_000)
    header = check_batch(raw, 2)
    assert header.max_timestamp == 5_000
    assert header.is_append_time
    other = DefaultRecordBatch(bytes(raw[2:-2]))
    assert other.validate_crc()
    assert {record.timestamp for record in other} == {5_000}


@given(st.data())
def test_mutated_bytes_only_ever_blame_the_sender(data: st.DataObject) -> None:
    raw = made()
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for compacted in (False, True):
        with suppress(RemoteError, Refused):
            check_batch(raw, 0, cut, compacted=compacted)
    with suppress(CorruptBatch):
        for position, header in walk(raw, 0, cut):
            assert position + header.size <= cut
