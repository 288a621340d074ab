from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.log.checks import assign_offsets, checked_headers, record_faults, stamped_headers, trusted_headers
from millpond.log.limits import LogLimits
from millpond.wire.records import Record, encode_batch, wrap_payload
from support.cpu import least_seconds

NOW_MS = 1_700_000_000_000
LIMITS = LogLimits()


def batch(timestamp=NOW_MS, key=b"k", count=1, **fields):
    return bytearray(encode_batch([Record(n, timestamp, key, b"value") for n in range(count)], **fields))


def refusal(data, limits=LIMITS):
    with pytest.raises(Refused) as refused:
        checked_headers(data, limits, NOW_MS)
    return refused.value.code


def test_a_sound_batch_passes_alone_but_not_in_company():
    assert [header.record_count for header in checked_headers(batch(count=3), LIMITS, NOW_MS)] == [3]
    assert refusal(batch(count=3) + batch()) == ErrorCode.INVALID_RECORD
    assert refusal(batch() + b"\0") == ErrorCode.CORRUPT_MESSAGE


def test_every_flipped_bit_after_the_leader_epoch_is_noticed():
    whole = batch()
    for position in range(16, len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            with pytest.raises(Refused):
                checked_headers(damaged, LIMITS, NOW_MS)


def test_what_is_not_whole_is_no_batch():
    assert refusal(batch()[:-1]) == ErrorCode.CORRUPT_MESSAGE
    assert refusal(bytearray()) == ErrorCode.CORRUPT_MESSAGE


def test_sizes_have_limits():
    size = len(batch())
    assert checked_headers(batch(), replace(LIMITS, max_message_bytes=size), NOW_MS)
    assert refusal(batch(), replace(LIMITS, max_message_bytes=size - 1)) == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(batch(), replace(LIMITS, segment_bytes=size - 1)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_what_only_brokers_write_is_refused():
    assert refusal(batch(control=True)) == ErrorCode.INVALID_RECORD
    assert refusal(batch(delete_horizon_ms=NOW_MS)) == ErrorCode.INVALID_RECORD
    assert trusted_headers(batch(control=True))


def test_timestamps_must_be_near_enough():
    limits = replace(LIMITS, timestamp_after_max_ms=1000, timestamp_before_max_ms=5000)
    for timestamp in (NOW_MS + 1000, NOW_MS - 5000, -1):
        assert checked_headers(batch(timestamp), limits, NOW_MS)
    for timestamp in (NOW_MS + 1001, NOW_MS - 5001):
        assert refusal(batch(timestamp), limits) == ErrorCode.INVALID_TIMESTAMP
        assert checked_headers(batch(timestamp), replace(limits, timestamp_type_append=True), NOW_MS)
    assert refusal(batch(append_time_ms=NOW_MS)) == ErrorCode.INVALID_TIMESTAMP


def test_a_compacted_topic_wants_keys():
    compacted = replace(LIMITS, cleanup_compact=True)
    assert checked_headers(batch(codec=1), compacted, NOW_MS)
    assert checked_headers(batch(key=None), LIMITS, NOW_MS)
    assert refusal(batch(key=None), compacted) == ErrorCode.INVALID_RECORD
    assert refusal(batch(key=None, codec=1), compacted) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [0, 1])
def test_a_topic_that_becomes_a_compacted_one_after_its_records_were_checked_wants_keys(codec):
    """The records were looked at for a timestamp, which is good by the time the batch is appended."""
    late = batch(NOW_MS + 2000, key=None, codec=codec)
    limits = replace(LIMITS, timestamp_after_max_ms=1000)
    faults = record_faults(late, limits, NOW_MS)
    compacted = replace(limits, cleanup_compact=True)
    with pytest.raises(Refused, match="need a key"):
        checked_headers(late, compacted, NOW_MS + 1500, faults)
    good = record_faults(batch(codec=codec), compacted, NOW_MS)
    assert checked_headers(batch(codec=codec), compacted, NOW_MS, good)


@pytest.mark.parametrize("records", [100_001, 4_000_000])
def test_a_compacted_topic_unpacks_no_batch_that_takes_long(records):
    """A few kilobytes may hold millions of empty records."""
    record = b"\x0e\0\0\0\0\0\0\0"
    bomb = wrap_payload(record * records, records, NOW_MS, NOW_MS, codec=4)
    assert len(bomb) < 10_000

    def refuse() -> None:
        assert refusal(bytearray(bomb), replace(LIMITS, cleanup_compact=True)) == ErrorCode.INVALID_RECORD

    assert least_seconds(refuse) < 0.1
    one = wrap_payload(b"\0" * (20 << 20), 1, NOW_MS, NOW_MS, codec=4)
    assert refusal(bytearray(one), replace(LIMITS, cleanup_compact=True)) == ErrorCode.MESSAGE_TOO_LARGE


def test_more_records_than_bytes_could_hold_are_refused():
    from millpond.wire.batch import batch_crc

    data = batch()
    struct.pack_into(">i", data, 23, 999)
    struct.pack_into(">i", data, 57, 1000)
    struct.pack_into(">I", data, 17, batch_crc(data, 0, len(data)))
    assert refusal(data) == ErrorCode.INVALID_RECORD


def test_nothing_is_no_batch_from_a_leader_either():
    with pytest.raises(Refused):
        trusted_headers(b"")
    with pytest.raises(Refused):
        trusted_headers(batch()[:-1])


def test_the_brokers_time_is_stamped_on_every_batch():
    data = bytearray(batch() + batch())
    stamped = stamped_headers(memoryview(data), trusted_headers(data), 77)
    assert [header.max_timestamp for header in stamped] == [77, 77]
    assert [header.is_append_time for header in trusted_headers(data)] == [True, True]


def test_batches_get_the_next_offsets_and_the_epoch(harness):
    batches = memoryview(bytearray(bytes(harness.batch(b"a", b"b")) + bytes(harness.batch(b"c"))))
    last = assign_offsets(batches, trusted_headers(batches), 7, 3)
    assert last == 9
    assert [(header.base_offset, header.leader_epoch) for header in trusted_headers(batches)] == [(7, 3), (9, 3)]
