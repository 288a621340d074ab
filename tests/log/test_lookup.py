from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.log import lookup
from millpond.log.limits import LogLimits
from millpond.log.lookup import UNPACKED_BATCHES_MAX, UNPACKED_RECORDS_MAX, LookupBudget
from millpond.wire.kernel import COMPILED
from millpond.wire.records import Record, _varint, encode_batch, wrap_payload
from support.cpu import least_seconds

LIMITS = LogLimits(segment_bytes=400, index_interval_bytes=100, timestamp_after_max_ms=1 << 62)
batches = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=25)


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(0, 30), st.sampled_from(["open", "clean", "crash"]), st.integers(0, 4))
def test_against_looking_at_every_record(make_pond, batches, start, ending, codec):
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    written = []
    for epoch, timestamps in enumerate(batches):
        records = [Record(n, timestamp, b"k", b"v") for n, timestamp in enumerate(timestamps)]
        data = memoryview(bytearray(encode_batch(records, codec=codec)))
        first = log.append(data, leader_epoch=epoch, now_ms=100).first_offset
        written += [(timestamp, first + n, epoch) for n, timestamp in enumerate(timestamps)]
    harness.delete_before(log, min(start, log.end_offset))
    if ending != "open":
        store.close() if ending == "clean" else store.abandon()
        store, log = harness.open()
    live = written[log.start_offset :]
    for asked in range(42):
        assert log.find_by_timestamp(asked) == next((found for found in live if found[0] >= asked), None)
    upper = log.start_offset + len(live) // 2
    assert log.find_by_timestamp(0, upper) == next((found for found in live if found[1] < upper), None)
    largest = max((found[0] for found in live), default=None)
    assert log.max_timestamp() == next((found for found in live if found[0] == largest), None)


def test_batches_that_compaction_emptied_are_passed_over(make_pond):
    harness = make_pond(limits=replace(LIMITS, cleanup_compact=True, min_cleanable_dirty_ratio=0.0))
    _, log = harness.open()
    harness.append(log, b"old", timestamp=500, producer_id=1, producer_epoch=0, base_sequence=0)
    for number in range(12):
        harness.append(log, b"new", timestamp=600 + number)
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    log.finish_compaction(plan)
    first = harness.records(log)[0]
    assert first.offset > 0
    assert log.find_by_timestamp(0) == (first.timestamp, first.offset, 0)


def wrapped(harness, payload, count, base_timestamp, max_timestamp, codec=4):
    return memoryview(bytearray(wrap_payload(payload, count, base_timestamp, max_timestamp, codec=codec)))


def payload_of(*records):
    """Records of (timestamp delta, header count), all of them as empty as can be."""
    parts = []
    for delta, (timestamp, headers) in enumerate(records):
        body = b"\x00" + _varint(timestamp) + _varint(delta) + b"\x01\x01" + _varint(headers) + b"\x00\x01" * headers
        parts.append(_varint(len(body)) + body)
    return b"".join(parts)


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_batch_of_millions_of_headers_costs_nothing(harness):
    _, log = harness.open()
    log.limits = replace(log.limits, segment_bytes=1 << 20)
    batch = wrapped(harness, payload_of((0, 0), (100, 10_000_000)), 2, 1000, 1100)
    assert len(batch) < 12_000
    log.append(batch, leader_epoch=3, now_ms=harness.now_ms)
    harness.append(log, b"after", timestamp=2000)
    answers = []
    assert peak_bytes(lambda: answers.extend(map(log.find_by_timestamp, (900, 1050, 1500)))) < 40 << 20
    # By its header; as a batch, because unpacking it is too much; and not even touched.
    assert answers == [(1000, 0, 3), (1100, 0, 3), (2000, 2, 0)]
    assert log.max_timestamp() == (2000, 2, 0)
    harness.cut(log, 2)
    assert log.max_timestamp() == (1100, 0, 3)


def test_a_small_batch_of_millions_of_records_costs_nothing(harness):
    _, log = harness.open()
    log.limits = replace(log.limits, segment_bytes=1 << 20)
    payload = payload_of(*[(n, 0) for n in range(UNPACKED_RECORDS_MAX + 1)])
    log.append(wrapped(harness, payload, UNPACKED_RECORDS_MAX + 1, 0, UNPACKED_RECORDS_MAX), leader_epoch=0, now_ms=0)
    answers = []
    assert peak_bytes(lambda: answers.extend(map(log.find_by_timestamp, (0, 50, None)))) < 5 << 20
    assert answers == [(0, 0, 0), (UNPACKED_RECORDS_MAX, 0, 0), (UNPACKED_RECORDS_MAX, 0, 0)]


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_that_cannot_be_unpacked_is_refused_by_a_code(harness, codec):
    _, log = harness.open()
    log.append(wrapped(harness, b"\xff" * 40, 2, 1000, 1100, codec), leader_epoch=0, now_ms=harness.now_ms)
    harness.append(log, b"after", timestamp=2000)
    for asked in (1050, None):
        if asked is None:
            harness.cut(log, 2)
        with pytest.raises(Refused, match="cannot be decompressed") as refusal:
            log.find_by_timestamp(asked)
        assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE


def test_headers_that_lie_about_times_do_not_make_a_lookup_unpack_everything(harness, monkeypatch):
    _, log = harness.open()
    for _ in range(60):
        log.append(wrapped(harness, payload_of((0, 0), (1, 0)), 2, 1000, 9000), leader_epoch=0, now_ms=harness.now_ms)
    unpacked = counted(monkeypatch)
    for asked in (5000, None):
        unpacked.clear()
        with pytest.raises(Refused, match="too many batches"):
            log.find_by_timestamp(asked)
        assert len(unpacked) == UNPACKED_BATCHES_MAX


def counted(monkeypatch):
    calls = []
    real = lookup.records_section
    monkeypatch.setattr(lookup, "records_section", lambda *args, **named: calls.append(args) or real(*args, **named))
    return calls


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 59))
def test_the_largest_timestamp_behind_deleted_records_unpacks_one_batch(make_pond, monkeypatch, start):
    harness = make_pond(limits=replace(LIMITS, segment_bytes=1 << 20))
    _, log = harness.open()
    times = [9000, *range(1000, 1030)]
    for time in times:
        log.append(
            wrapped(harness, payload_of((0, 0), (5, 0)), 2, time, time + 5), leader_epoch=0, now_ms=harness.now_ms
        )
    harness.delete_before(log, start)
    with monkeypatch.context() as patch:
        unpacked = counted(patch)
        assert log.max_timestamp() == (1034, 61, 0)
    assert len(unpacked) <= 2


def test_what_a_lookup_learned_is_not_read_again(harness, sim):
    store, log = harness.open()
    harness.fill(log, 40)
    store.close()
    store, log = harness.open()
    assert len(log.segments) > 3
    assert log.find_by_timestamp(harness.now_ms + 1) is None
    assert all(segment.known_max_timestamp is not None for segment in log.segments)
    assert sim.open_files == 0


def test_a_lookup_notices_that_files_were_exchanged_under_it(harness):
    _, log = harness.open()
    log.limits = replace(log.limits, cleanup_compact=True, min_cleanable_dirty_ratio=0.0)
    harness.fill(log, 40)
    before, held = log.time_lookup(harness.now_ms), log.time_lookup(harness.now_ms)
    held.run()
    assert not held.is_stale(log.segments)
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    log.finish_compaction(plan)
    before.run()
    assert before.is_stale(log.segments)
    assert not log.time_lookup(harness.now_ms).is_stale(log.segments)
    fresh = log.time_lookup(harness.now_ms)
    harness.cut(log, log.segments.active.base_offset + 1)
    assert fresh.is_stale(log.segments)


def test_times_beyond_64_bits_are_refused_by_a_code(harness):
    """The answer could not be written, and a reply that cannot be written ended the node."""
    _, log = harness.open()
    last = (1 << 63) - 1
    log.limits = replace(log.limits, timestamp_after_max_ms=1 << 63)
    log.append(wrapped(harness, payload_of((-5, 0), (5, 0)), 2, last, last), leader_epoch=0, now_ms=harness.now_ms)
    with pytest.raises(Refused, match="beyond 64 bits") as refusal:
        log.find_by_timestamp(None)
    assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE


def lying_log(harness, batches, records=UNPACKED_RECORDS_MAX, codec=4):
    """Every header promises a time that no record has."""
    _, log = harness.open()
    log.limits = replace(log.limits, segment_bytes=64 << 20)
    payload = payload_of(*[(n % 50, 0) for n in range(records)])
    for _ in range(batches):
        log.append(wrapped(harness, payload, records, 1000, 9000, codec), leader_epoch=0, now_ms=harness.now_ms)
    return log


def test_batches_that_lie_about_times_are_read_in_compiled_code(harness):
    log = lying_log(harness, UNPACKED_BATCHES_MAX)

    def look() -> None:
        assert log.find_by_timestamp(5000) is None

    # Sixteen batches of 100,000 records took more than a second when each record became a Python object.
    assert not COMPILED or least_seconds(look) < 0.2


def test_once_the_budget_is_spent_the_answer_is_the_batch(harness, monkeypatch):
    log = lying_log(harness, UNPACKED_BATCHES_MAX)
    unpacked = counted(monkeypatch)
    budget = LookupBudget()
    budget.left = 4_000
    one = log.time_lookup(5000, budget=budget)
    one.run()
    assert one.finish() == (9000, 2 * UNPACKED_RECORDS_MAX, 0)
    assert len(unpacked) == 2
    assert budget.left < 0
    # Another look-up of the same request has nothing left to spend.
    other = log.time_lookup(None, budget=budget)
    other.run()
    assert other.finish() == (9000, 0, 0)
    assert len(unpacked) == 2


def test_headers_are_not_walked_without_end(harness, monkeypatch):
    _, log = harness.open()
    log.limits = replace(log.limits, segment_bytes=64 << 20, index_interval_bytes=1 << 30)
    log.append(wrapped(harness, payload_of((0, 0), (1, 0)), 2, 1000, 9000), leader_epoch=0, now_ms=harness.now_ms)
    for _ in range(2_000):
        harness.append(log, b"small", timestamp=1000)
    for asked in (5000, None):
        budget = LookupBudget()
        budget.left = 1_000
        lookup = log.time_lookup(asked, budget=budget)
        lookup.run()
        with pytest.raises(Refused, match="too many batches"):
            lookup.finish()


def test_a_lookup_stops_when_its_client_is_gone(harness, monkeypatch):
    log = lying_log(harness, 5, records=100)
    unpacked = counted(monkeypatch)
    lookup = log.time_lookup(5000, budget=LookupBudget(1, lambda: len(unpacked) < 2))
    lookup.run()
    with pytest.raises(Refused) as refused:
        lookup.finish()
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert len(unpacked) == 2
