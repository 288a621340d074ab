"""The compiled kernel and its plain twin: the same answers, the same refusals."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import MalformedMessage
from millpond.wire import batch
from millpond.wire.batch import CorruptBatch
from millpond.wire.kernel import plain
from millpond.wire.records import Record, encode_batch
from support.twins import compiled, needs

NAMES = (
    "scan",
    "decode_records",
    "record_keys",
    "record_spans",
    "keyless_records",
    "records_outside",
    "first_not_older",
    "latest_record",
    "note_keys",
    "flag_latest",
    "flagged_records",
)

fast = compiled("_fast")
needs_fast = needs(fast)


RECORDS = [
    Record(100, 5_000, b"a", b"first", (("h", b"1"), ("ü", None))),
    Record(101, 4_000, None, b""),
    Record(250, 5_001, b"", None),
    Record(100_000, 1 << 50, b"k" * 300, b"v" * 70_000, ()),
]


def payload_of(records: list[Record] = RECORDS, base_offset: int = 100) -> bytes:
    return encode_batch(records, base_offset=base_offset)[batch.HEADER_BYTES :]


def test_decode_gives_every_field(kernel: Any) -> None:
    found = kernel.decode_records(payload_of(), 4, 100, 5_000)
    assert found == [tuple(record) for record in RECORDS]


def test_decode_uses_the_append_time_where_there_is_one(kernel: Any) -> None:
    found = kernel.decode_records(payload_of(), 4, 100, 5_000, 77)
    assert [fields[1] for fields in found] == [77] * 4


def test_keys(kernel: Any) -> None:
    assert kernel.record_keys(memoryview(payload_of()), 4) == [
        (0, b"a", True, 0),
        (1, None, True, -1_000),
        (150, b"", False, 1),
        (99_900, b"k" * 300, True, (1 << 50) - 5_000),
    ]


def test_spans_cut_the_payload_into_records(kernel: Any) -> None:
    payload = payload_of()
    spans = kernel.record_spans(payload, 4)
    assert [span[2] for span in spans] == [0, -1_000, 1, (1 << 50) - 5_000]
    assert b"".join(payload[start:end] for start, end, _, _ in spans) == payload
    # The offset delta follows the timestamp: 0, -1 and 75 in zigzag, the last in three bytes.
    assert [payload[after] for _, _, _, after in spans][:2] == [0, 2]
    assert payload[spans[2][3] : spans[2][3] + 2] == b"\xac\x02"


def digest(key: bytes) -> bytes:
    return b"#" + key


def test_the_first_records_without_a_key_are_found(kernel: Any) -> None:
    assert kernel.keyless_records(memoryview(payload_of()), 4, 10) == [1]
    many = payload_of([Record(100 + n, 5_000, None if n % 3 == 0 else b"k", b"v") for n in range(10_000)])
    assert kernel.keyless_records(many, 10_000, 4) == [0, 3, 6, 9]
    assert len(kernel.keyless_records(many, 10_000, 10_000)) == 3_334


def test_records_outside_a_span_of_time_are_found(kernel: Any) -> None:
    def outside(oldest: int, newest: int, most: int = 10) -> Any:
        return kernel.records_outside(memoryview(payload_of()), 4, 5_000, oldest, newest, most)

    assert outside(0, 1 << 60) == []
    assert outside(5_000, 5_001) == [(1, 4_000), (3, 1 << 50)]
    assert outside(5_000, 5_001, 1) == [(1, 4_000)]
    without = payload_of([Record(100, 5_000, b"a", b""), Record(101, -1, b"b", b"")])
    assert kernel.records_outside(without, 2, 5_000, 0, 5_000, 10) == []


def test_the_first_record_that_is_not_older_ends_the_walk(kernel: Any) -> None:
    payload = payload_of()
    assert kernel.first_not_older(payload, 4, 5_000, 0, 0) == (0, 5_000)
    assert kernel.first_not_older(payload, 4, 5_000, 0, 1) == (1, 4_000)
    assert kernel.first_not_older(payload, 4, 5_000, 5_001, 0) == (150, 5_001)
    assert kernel.first_not_older(payload, 4, 5_000, 5_001, 151) == (99_900, 1 << 50)
    assert kernel.first_not_older(payload, 4, 5_000, (1 << 50) + 1, 0) is None
    # Not even that the last record is cut off is seen.
    assert kernel.first_not_older(payload[:-1], 4, 5_000, 5_001, 0) == (150, 5_001)


def test_the_first_of_the_latest_records_is_found(kernel: Any) -> None:
    assert kernel.latest_record(payload_of(), 4, 5_000, 0) == (99_900, 1 << 50)
    assert kernel.latest_record(payload_of(RECORDS[:3]), 3, 5_000, 0) == (150, 5_001)
    assert kernel.latest_record(payload_of(RECORDS[:3]), 3, 5_000, 151) is None
    same = payload_of([Record(100 + n, 7_000, b"k", b"") for n in range(5)])
    assert kernel.latest_record(same, 5, 7_000, 2) == (2, 7_000)


def test_the_latest_offset_of_every_key_is_noted(kernel: Any) -> None:
    offsets = {b"a": 7, b"other": 8}
    kernel.note_keys(memoryview(payload_of()), 4, 100, offsets, digest)
    assert offsets == {b"a": 100, b"other": 8, b"": 250, b"#" + b"k" * 300: 100_000}


def test_of_a_malformed_batch_no_key_is_noted(kernel: Any) -> None:
    offsets: dict[bytes, int] = {}
    for payload, count in ((payload_of()[:-1], 4), (payload_of(), 3)):
        with pytest.raises(MalformedMessage):
            kernel.note_keys(payload, count, 100, offsets, digest)
    assert offsets == {}


@pytest.mark.parametrize(
    ("offsets", "flags", "has_tombstone"),
    [
        ({}, [True, False, True, True], True),
        ({b"a": 100, b"": 250, b"#" + b"k" * 300: 100_000}, [True, False, True, True], True),
        ({b"a": 101, b"": 251}, [False, False, False, True], False),
        ({b"k" * 300: 1 << 40}, [True, False, True, True], True),
    ],
)
def test_the_latest_of_their_keys_are_flagged(
    kernel: Any, offsets: dict[bytes, int], flags: list[bool], has_tombstone: bool
) -> None:
    assert kernel.flag_latest(memoryview(payload_of()), 4, 100, offsets, digest) == (flags, has_tombstone)


@pytest.mark.parametrize(
    ("flags", "latest"),
    [
        ([True, True, True, True], (1 << 50) - 5_000),
        ([False, True, False, False], -1_000),
        ([False, True, True, False], 1),
        ([False, False, False, False], 0),
    ],
)
def test_flagged_records_are_joined(kernel: Any, flags: list[bool], latest: int) -> None:
    payload = payload_of()
    spans = plain.record_spans(payload, 4)
    joined = b"".join(payload[start:end] for (start, end, _, _), flag in zip(spans, flags, strict=True) if flag)
    assert kernel.flagged_records(memoryview(payload), 4, flags) == (joined, sum(flags), latest)
    with pytest.raises(ValueError):
        kernel.flagged_records(payload, 4, flags[1:])


def test_nothing_at_all_is_no_record(kernel: Any) -> None:
    assert kernel.decode_records(b"", 0, 0, 0) == []
    assert kernel.record_keys(b"", 0) == []
    assert kernel.record_spans(b"", 0) == []
    assert kernel.scan(b"", 0, 0) == []


def one_record(body: bytes) -> bytes:
    return bytes([len(body) * 2]) + body


WELL_FORMED = b"\x00\x00\x00\x01\x01\x00"
"""Attributes, timestamp delta, offset delta, no key, no value, no headers."""


def test_the_smallest_record(kernel: Any) -> None:
    assert kernel.decode_records(one_record(WELL_FORMED), 1, 7, 9) == [(7, 9, None, None, ())]


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (one_record(WELL_FORMED), 2),  # more records than there can be
        (one_record(WELL_FORMED), -1),
        (one_record(WELL_FORMED), 1 << 40),
        (one_record(WELL_FORMED) + b"\x00", 1),  # bytes left over
        (one_record(WELL_FORMED), 0),
        (one_record(WELL_FORMED)[:-1] + b"", 1),  # cut off
        (b"\x0e" + WELL_FORMED, 1),  # longer than the bytes
        (b"\x0a" + WELL_FORMED, 1),  # shorter than a record can be
        (b"\x0b" + WELL_FORMED, 1),  # negative
        (b"\xff" * 7, 1),  # a varint without end
        (b"\xff\xff\xff\xff\x1f" + WELL_FORMED, 1),  # beyond 32 bits
        (one_record(b"\x00" + b"\xff" * 9 + b"\x02" + b"\x00\x01\x01\x00"), 1),  # beyond 64 bits
        (one_record(b"\x00" + b"\xff" * 10 + b"\x00" + b"\x00\x01\x01\x00"), 1),  # eleven bytes
        (one_record(b"\x00\x00\x01\x01\x01\x00"), 1),  # a negative offset delta
        (one_record(WELL_FORMED) * 2, 2),  # the same offset twice
        (one_record(b"\x00\x00\x00\x80\x80\x80"), 1),  # a varint across the record's end
        (one_record(b"\x00\x00\x00\x01\x03\x00"), 1),  # a value of -2 bytes
        (one_record(b"\x00\x00\x00\x03\x01\x00"), 1),  # a key of -2 bytes
        (one_record(b"\x00\x00\x00\x08\x01\x00"), 1),  # a key past the end
        (one_record(b"\x00\x00\x00\x01\x08\x00"), 1),  # a value past the end
        (one_record(b"\x00\x00\x00\x01\x02\x00"), 1),  # a value that leaves no room for headers
    ],
)
def test_what_cannot_be_is_malformed(kernel: Any, payload: bytes, count: int) -> None:
    with pytest.raises(MalformedMessage):
        kernel.decode_records(payload, count, 0, 0)
    with pytest.raises(MalformedMessage):
        kernel.record_keys(payload, count)


@pytest.mark.parametrize(
    "headers",
    [
        b"\x01",  # -1 headers
        b"\x02",  # a header without room
        b"\x02\x02",
        b"\x02\x01\x01",  # a name of -1 bytes
        b"\x02\x00\x03",  # a value of -2 bytes
        b"\x02\x00\x04a",  # a value past the end
        b"\x02\x00\x01\x00",  # a byte left over
        b"\xfe\xff\xff\xff\x0f",  # 2**31 - 1 headers
    ],
)
def test_headers_that_cannot_be_are_malformed(kernel: Any, headers: bytes) -> None:
    with pytest.raises(MalformedMessage):
        kernel.decode_records(one_record(WELL_FORMED[:-1] + headers), 1, 0, 0)


def test_a_header_name_that_is_not_utf_8_is_replaced(kernel: Any) -> None:
    section = one_record(WELL_FORMED[:-1] + b"\x02\x04a\xff\x01")
    assert kernel.decode_records(section, 1, 0, 0)[0][-1] == (("a\ufffd", None),)


def test_offsets_and_timestamps_stay_in_64_bits(kernel: Any) -> None:
    latest = (1 << 63) - 1
    later = one_record(b"\x00\x02\x02\x01\x01\x00")
    assert kernel.decode_records(later, 1, latest - 1, latest - 1) == [(latest, latest, None, None, ())]
    with pytest.raises(MalformedMessage):
        kernel.decode_records(later, 1, latest, 0)
    with pytest.raises(MalformedMessage):
        kernel.decode_records(later, 1, 0, latest)
    with pytest.raises(MalformedMessage):
        kernel.decode_records(one_record(b"\x00\x01\x02\x01\x01\x00"), 1, 0, -latest - 1)


def batches(count: int) -> tuple[bytes, list[int]]:
    """Some batches in a row, and where each begins."""
    parts = [
        encode_batch(
            [Record(10 * number + step, 1_000 * number + step, b"k", b"v" * number) for step in range(number + 1)],
            base_offset=10 * number,
            leader_epoch=number,
            producer_id=900 + number,
            producer_epoch=2,
            base_sequence=number,
            transactional=number % 2 == 1,
        )
        for number in range(count)
    ]
    return b"".join(parts), [sum(map(len, parts[:number])) for number in range(count)]


def test_scan_tells_what_every_header_says(kernel: Any) -> None:
    data, positions = batches(6)
    found = kernel.scan(memoryview(data), 0, len(data), True)
    assert [each.position for each in found] == positions
    for each, (position, header) in zip(found, batch.walk(data), strict=True):
        assert isinstance(each, plain.ScannedBatch)
        assert each == plain.ScannedBatch(
            position=position,
            size=header.size,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            max_timestamp=header.max_timestamp,
            leader_epoch=header.leader_epoch,
            attributes=header.attributes,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            record_count=header.record_count,
        )


def test_scan_respects_its_start_and_end(kernel: Any) -> None:
    data, positions = batches(4)
    assert [each.position for each in kernel.scan(data, positions[1], positions[3])] == positions[1:3]
    assert [each.position for each in kernel.scan(data, positions[1], positions[3] + 70)] == positions[1:3]
    assert [each.position for each in kernel.scan(data, positions[1], len(data) + 999)] == positions[1:]
    assert kernel.scan(data, len(data) + 5, len(data)) == []
    with pytest.raises(MalformedMessage):
        kernel.scan(data, -1, len(data))


@pytest.mark.parametrize(
    ("at", "layout", "value", "needs_crc"),
    [
        (8, ">i", 48, False),
        (8, ">i", -(1 << 31), False),
        (16, ">b", 1, False),
        (0, ">q", -1, False),
        (0, ">q", (1 << 63) - 1, False),
        (57, ">i", -1, False),
        (57, ">i", 4, False),
        (23, ">i", -1, False),
        (17, ">I", 5, True),
        (70, ">B", 0xEE, True),
    ],
)
def test_scan_ends_before_a_corrupt_batch_and_raises_at_it(
    kernel: Any, at: int, layout: str, value: int, needs_crc: bool
) -> None:
    data, positions = batches(4)
    broken = bytearray(data)
    struct.pack_into(layout, broken, positions[2] + at, value)
    assert [each.position for each in kernel.scan(broken, 0, len(broken), True)] == positions[:2]
    with pytest.raises(CorruptBatch):
        kernel.scan(broken, positions[2], len(broken), True)
    if needs_crc:
        assert [each.position for each in kernel.scan(broken, 0, len(broken))] == positions
    else:
        assert [each.position for each in kernel.scan(broken, 0, len(broken))] == positions[:2]


def outcome(function: Any, *arguments: object) -> object:
    """What it answers, or which kind of refusal."""
    try:
        return function(*arguments)
    except (MalformedMessage, CorruptBatch) as error:
        return type(error)


def mutated(data: st.DataObject, raw: bytes) -> bytearray:
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return changed[: data.draw(st.integers(0, len(changed)) | st.just(len(changed)))]


SMALL = payload_of(RECORDS[:3])


def agree_on(payload: bytes | bytearray, count: int, base: int, known: dict[bytes, int], flags: list[bool]) -> None:
    for name, arguments in (
        ("decode_records", (base, base)),
        ("record_keys", ()),
        ("record_spans", ()),
        ("keyless_records", (1,)),
        ("keyless_records", (10,)),
        ("records_outside", (base, base - 100, base, 2)),
        ("first_not_older", (base, base + 1, 1)),
        ("latest_record", (base, 1)),
        ("flag_latest", (base, known, digest)),
        ("flagged_records", (flags,)),
    ):
        ours = outcome(getattr(plain, name), payload, count, *arguments)
        assert outcome(getattr(fast, name), payload, count, *arguments) == ours, name
    plainly, compiled_ones = dict(known), dict(known)
    ours = outcome(plain.note_keys, payload, count, base, plainly, digest)
    assert fast is not None
    assert outcome(fast.note_keys, payload, count, base, compiled_ones, digest) == ours
    assert compiled_ones == plainly


@needs_fast
@given(st.data())
def test_twins_agree_on_mutated_records(data: st.DataObject) -> None:
    assert fast is not None
    payload = mutated(data, SMALL)
    count = data.draw(st.integers(0, 4) | st.just(3))
    base = data.draw(st.sampled_from([0, 100, (1 << 63) - 200]))
    known = data.draw(st.dictionaries(st.sampled_from([b"a", b"", b"b"]), st.integers(0, 300)))
    flags = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    agree_on(payload, count, base, known, flags)


@needs_fast
@given(st.binary(max_size=60), st.integers(0, 9))
def test_twins_agree_on_random_bytes(payload: bytes, count: int) -> None:
    assert fast is not None
    agree_on(payload, count, 0, {}, [True] * count)


BATCHES = batches(3)[0]


@needs_fast
@given(st.data())
def test_twins_agree_on_mutated_batches(data: st.DataObject) -> None:
    assert fast is not None
    raw = mutated(data, BATCHES)
    position = data.draw(st.integers(0, len(raw)) | st.just(0))
    end = data.draw(st.integers(0, len(raw) + 5) | st.just(len(raw)))
    verify = data.draw(st.booleans())
    ours = outcome(plain.scan, raw, position, end, verify)
    assert outcome(fast.scan, raw, position, end, verify) == ours


@pytest.mark.parametrize("asked_plain", ["", "1"])
def test_the_environment_chooses_the_twin(asked_plain: str) -> None:
    program = "from millpond.wire import kernel; print(kernel.COMPILED, kernel.scan.__module__)"
    environment = {**os.environ, "MILLPOND_PLAIN": asked_plain}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    compiled = fast is not None and not asked_plain
    assert answer == [str(compiled), f"millpond.wire.kernel.{'_fast' if compiled else 'plain'}"]


@needs_fast
def test_twins_offer_the_same_functions() -> None:
    for name in NAMES:
        assert callable(getattr(plain, name))
        assert callable(getattr(fast, name))
