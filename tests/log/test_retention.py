from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.base.errors import Refused
from millpond.log.limits import DAY_MS, LogLimits
from millpond.log.retention import JUMP_MS, SETTLE_MS, RetentionClock, is_append_time_needed

LIMITS = LogLimits(segment_bytes=400, retention_ms=10_000, timestamp_after_max_ms=1 << 60)


def expired(log, now_ms, **named):
    return [segment.base_offset for segment in log.expired_segments(now_ms, **named)]


@pytest.fixture
def filled(make_pond):
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    harness.fill(log, 20)
    harness.sync(log)
    return harness, store, log


def test_time_takes_whole_segments_in_their_order(filled):
    harness, _, log = filled
    assert expired(log, harness.now_ms + 10_000) == []
    assert expired(log, harness.now_ms + 10_001) == log.segments.bases
    harness.now_ms += 5000
    harness.fill(log, 1, start=20)
    assert expired(log, harness.now_ms + 5001) == log.segments.bases[:-1]
    assert expired(log, harness.now_ms + 5001, upper_offset=log.segments.bases[2]) == log.segments.bases[:2]
    log.limits = replace(LIMITS, retention_ms=-1)
    assert expired(log, harness.now_ms * 2) == []
    log.limits = replace(LIMITS, cleanup_delete=False, cleanup_compact=True)
    assert expired(log, harness.now_ms * 2) == []


def test_size_takes_the_oldest_while_enough_is_left(filled):
    harness, _, log = filled
    first, second = log.segments[0].size, log.segments[1].size
    log.limits = replace(LIMITS, retention_bytes=log.size_bytes - first)
    assert expired(log, harness.now_ms) == log.segments.bases[:1]
    log.limits = replace(LIMITS, retention_bytes=log.size_bytes - first - second + 1)
    assert expired(log, harness.now_ms) == log.segments.bases[:1]
    log.limits = replace(LIMITS, retention_bytes=log.size_bytes - first - second)
    assert expired(log, harness.now_ms) == log.segments.bases[:2]


def test_a_future_timestamp_keeps_and_an_old_one_does_not_delete_what_just_came(make_pond):
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    harness.append(log, b"future", timestamp=harness.now_ms + DAY_MS)
    log.roll()
    assert expired(log, harness.now_ms + 10_001) == []
    assert expired(log, harness.now_ms + DAY_MS + 10_001) == [0]
    harness.append(log, b"backfill", timestamp=5)
    log.roll()
    for is_clean in (True, False):
        assert expired(log, harness.now_ms + DAY_MS * 2) == [0, 1]
        assert expired(log, harness.now_ms + 9_000) == []
        log.limits = replace(LIMITS, retention_ms=2 * DAY_MS + 9_000)
        assert expired(log, harness.now_ms + DAY_MS * 2) == [], "the time of the append was kept over the restart"
        store.checkpoint()
        store.close() if is_clean else store.abandon()
        store, log = harness.open()


def test_backfilled_data_counts_from_its_append_after_a_restart(make_pond):
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    harness.append(log, b"backfill", timestamp=5)
    log.roll()
    store.close()
    _, log = harness.open()
    assert expired(log, harness.now_ms + 10_000) == []
    assert expired(log, harness.now_ms + 10_001) == [0]


def test_retired_segments_are_gone_at_once_and_their_files_later(filled, sim):
    harness, store, log = filled
    reader = log.read(0, 100).range
    gone = log.segments[:2]
    kept = log.segments.bases[2]
    job = log.retire(gone)
    assert (log.start_offset, log.segments.bases[0]) == (kept, kept)
    with pytest.raises(Refused):
        log.read(0, 100)
    assert harness.disk.exists(gone[0].path(".log"))
    assert job.delay_ms == LIMITS.file_delete_delay_ms
    harness.remove(job)
    assert not any(
        name.startswith(f"{0:020d}.") and "snapshot" not in name for name in harness.disk.list(harness.partition)
    )
    assert reader.file.read_at(reader.position, reader.length), "who reads may finish"
    store.close()
    _, log = harness.open()
    assert log.start_offset == kept


def test_a_retired_segment_stays_gone_if_the_end_comes_before_its_job(filled):
    harness, store, log = filled
    kept = log.segments.bases[2]
    log.retire(log.segments[:2])
    store.close()
    _, log = harness.open()
    assert (log.start_offset, log.segments.bases[0]) == (kept, kept)


def test_when_all_is_expired_a_new_segment_comes_first(filled):
    harness, _, log = filled
    later = harness.now_ms + 10_001
    end = log.end_offset
    harness.remove(log.retire(log.expired_segments(later)))
    assert (log.segments.bases, log.start_offset, log.end_offset) == ([end], end, end)
    harness.disk.crash()
    _, log = harness.open()
    assert log.end_offset == end, "offsets go on"


def test_deleted_records_take_their_segments_with_them(filled):
    harness, store, log = filled
    log.limits = replace(LIMITS, cleanup_delete=False)
    harness.delete_before(log, log.segments.bases[2] + 1)
    assert expired(log, harness.now_ms) == log.segments.bases[:2]
    store.abandon()
    harness.disk.crash()
    _, log = harness.open()
    assert log.start_offset == log.segments.bases[0] + 1, "the start survives a power cut"


# The clock


def test_a_steady_clock_is_believed():
    clock = RetentionClock()
    for second in range(0, 10_000_000, 60_000):
        assert clock.observe(1000 + second + second // 50_000, second) == (1000 + second + second // 50_000, 0)


def test_a_leap_forward_counts_only_once_the_clock_has_settled():
    clock = RetentionClock()
    clock.observe(1000, 0)
    assert clock.observe(1000 + DAY_MS, 60_000) == (61_000, 0)
    assert clock.observe(1000 + DAY_MS + SETTLE_MS - 1, 60_000 + SETTLE_MS - 1) == (61_000 + SETTLE_MS - 1, 0)
    now_ms, leap_ms = clock.observe(1000 + DAY_MS + SETTLE_MS, 60_000 + SETTLE_MS)
    assert (now_ms, leap_ms) == (1000 + DAY_MS + SETTLE_MS, DAY_MS - 60_000)


def test_a_leap_that_is_taken_back_never_counts():
    clock = RetentionClock()
    clock.observe(1000, 0)
    clock.observe(1000 + DAY_MS, 1000)
    assert clock.observe(3000, 2000) == (3000, 0)
    assert clock.observe(3000 + SETTLE_MS + 2 * JUMP_MS, 2000 + SETTLE_MS) == (3000 + SETTLE_MS, 0)


def test_a_leap_back_counts_at_once():
    clock = RetentionClock()
    clock.observe(DAY_MS, 0)
    assert clock.observe(1000, 1000) == (1000, -DAY_MS)


def test_a_clock_that_starts_in_1970_deletes_nothing_when_it_is_set(make_pond):
    harness = make_pond(limits=replace(LIMITS, timestamp_type_append=True), now_ms=0)
    store, log = harness.open()
    store.retention_now(0, 0)
    harness.fill(log, 10)
    true_ms = 1_700_000_000_000
    for passed in range(0, 3 * SETTLE_MS, 60_000):
        now_ms = store.retention_now(true_ms + passed, passed)
        harness.now_ms = true_ms + passed
        if passed < 2 * LIMITS.retention_ms:
            assert expired(log, now_ms) == []
    assert now_ms >= true_ms
    moments = [segment.appended_ms for segment in log.segments]
    assert all(true_ms <= moment <= now_ms for moment in moments), "put in terms of the true time"


def test_a_clock_that_is_set_right_makes_no_producer_unknown(make_pond):
    behind_ms = 8 * DAY_MS
    harness = make_pond(limits=replace(LIMITS, producer_id_expiration_ms=DAY_MS), now_ms=0)
    store, log = harness.open()
    store.retention_now(0, 0)
    harness.append(log, b"first", producer_id=7, producer_epoch=0, base_sequence=0)
    for passed in range(0, 3 * SETTLE_MS, 60_000):
        log.expire_producers(store.retention_now(behind_ms + passed, passed))
    assert 7 in log.producers.entries
    log.expire_producers(behind_ms + 2 * DAY_MS)
    assert 7 not in log.producers.entries, "who is silent for so long is forgotten all the same"


def test_a_file_that_cannot_be_read_does_not_keep_a_checkpoint_from_being_written(make_pond):
    """It raised on the loop, where an error ends the process, again at every start."""
    harness = make_pond(limits=LIMITS)
    store, log = harness.open()
    harness.append(log, b"backfill", timestamp=5)
    log.roll()
    store.close()
    store, log = harness.open()
    harness.disk.fail_opens("pond-0/")
    store.checkpoint()
    assert is_append_time_needed(log.segments[0])
