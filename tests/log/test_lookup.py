from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.log.limits import LogLimits
from millpond.wire.records import Record, encode_batch

LIMITS = LogLimits(segment_bytes=400, index_interval_bytes=100, timestamp_after_max_ms=1 << 62)
batches = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=25)


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(0, 30), st.sampled_from(["open", "clean", "crash"]), st.integers(0, 4))
def test_against_looking_at_every_record(make_pond, batches, start, ending, codec):
    pond = make_pond(limits=LIMITS)
    store, log = pond.open()
    written = []
    for epoch, timestamps in enumerate(batches):
        records = [Record(n, timestamp, b"k", b"v") for n, timestamp in enumerate(timestamps)]
        data = memoryview(bytearray(encode_batch(records, codec=codec)))
        first = log.append(data, leader_epoch=epoch, now_ms=100).first_offset
        written += [(timestamp, first + n, epoch) for n, timestamp in enumerate(timestamps)]
    log.delete_before(min(start, log.end_offset))
    if ending != "open":
        store.close() if ending == "clean" else store.abandon()
        store, log = pond.open()
    live = written[log.start_offset :]
    for asked in range(42):
        assert log.find_by_timestamp(asked) == next((found for found in live if found[0] >= asked), None)
    upper = log.start_offset + len(live) // 2
    assert log.find_by_timestamp(0, upper) == next((found for found in live if found[1] < upper), None)
    largest = max((found[0] for found in live), default=None)
    assert log.max_timestamp() == next((found for found in live if found[0] == largest), None)


def test_batches_that_compaction_emptied_are_passed_over(make_pond):
    pond = make_pond(limits=replace(LIMITS, cleanup_compact=True, min_cleanable_dirty_ratio=0.0))
    _, log = pond.open()
    pond.append(log, b"old", timestamp=500, producer_id=1, producer_epoch=0, base_sequence=0)
    for number in range(12):
        pond.append(log, b"new", timestamp=600 + number)
    plan = log.compaction_candidate(pond.now_ms)
    plan.run()
    log.finish_compaction(plan)
    first = pond.records(log)[0]
    assert first.offset > 0
    assert log.find_by_timestamp(0) == (first.timestamp, first.offset, 0)
