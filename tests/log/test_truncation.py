from __future__ import annotations

import pytest
from tests.support.permissions import permitted

from millpond.base.errors import ErrorCode, Refused
from millpond.log.limits import LogLimits
from millpond.sim.world.disk import SimDisk
from support.seeds import seeds


def test_the_log_ends_where_it_was_cut(harness):
    _, log = harness.open()
    for number in range(30):
        harness.append(
            log, b"value-%d" % number, epoch=number // 10, producer_id=1, producer_epoch=0, base_sequence=number
        )
    harness.cut(log, 14)
    assert (log.end_offset, log.last_epoch) == (14, 1)
    assert harness.values(log) == {number: b"value-%d" % number for number in range(14)}
    assert log.producers.entries[1].last_sequence == 13
    assert max(log.snapshots.offsets, default=0) <= 14
    assert harness.append(log, b"other", epoch=5, producer_id=1, producer_epoch=0, base_sequence=14) == 14
    harness.cut(log, 99)
    assert log.end_offset == 15


def test_a_batch_is_kept_whole_or_not_at_all(harness, sim):
    store, log = harness.open()
    harness.append(log, b"a", b"b")
    harness.append(log, b"c", b"d", b"e")
    harness.sync(log)
    harness.cut(log, 4)
    assert (log.end_offset, log.synced_offset) == (2, 2)
    store.abandon()
    sim.crash()
    assert harness.values(harness.open()[1]) == {0: b"a", 1: b"b"}


def test_everything_can_go(harness):
    _, log = harness.open()
    harness.fill(log, 30)
    harness.cut(log, 0)
    assert (log.start_offset, log.end_offset, log.segments.bases) == (0, 0, [0])
    harness.fill(log, 2)
    assert len(harness.records(log)) == 2


def test_a_truncation_below_the_oldest_segment_restarts_the_log_there(harness):
    _, log = harness.open()
    harness.fill(log, 30)
    harness.sync(log)
    log.retire(log.segments[:2])
    harness.cut(log, 3)
    assert (log.start_offset, log.end_offset, log.segments.bases) == (3, 3, [3])
    assert harness.append(log, b"x") == 3


def test_an_older_sync_says_nothing_about_what_came_after_the_cut(harness):
    _, log = harness.open()
    harness.fill(log, 6)
    ticket = log.sync_target()
    ticket.run()
    harness.cut(log, 2)
    harness.fill(log, 4)
    log.synced(ticket)
    assert log.synced_offset == 0
    harness.sync(log)
    assert log.synced_offset == 6


def test_a_disk_that_fails_half_way_takes_the_log_offline(harness, sim):
    _, log = harness.open()
    harness.fill(log, 6)
    sim.fail_syncs("pond-0")
    harness.cut(log, 2)
    assert log.failed is not None
    with pytest.raises(Refused) as refused:
        harness.append(log, b"x")
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_cut_at_or_behind_the_end_still_forgets_epochs_that_begin_there(harness):
    _, log = harness.open()
    harness.fill(log, 3)
    log.epochs.assign(4, 3)
    harness.cut(log, 9)
    assert (log.end_offset, log.last_epoch) == (3, 0)


def test_a_log_that_is_far_behind_restarts_at_a_later_offset(harness, sim):
    store, log = harness.open()
    for number in range(30):
        harness.append(log, b"v", producer_id=1, producer_epoch=0, base_sequence=number)
    harness.cut(log, 1000, is_new_start=True)
    assert (log.start_offset, log.end_offset, log.segments.bases) == (1000, 1000, [1000])
    assert (log.producers.entries, log.last_epoch, log.snapshots.offsets) == ({}, -1, [])
    assert harness.append(log, b"x", epoch=7) == 1000
    harness.sync(log)
    store.abandon()
    sim.crash()
    _, log = harness.open()
    assert (log.start_offset, harness.values(log), log.epochs.entries) == (1000, {1000: b"x"}, [(7, 1000)])


def test_nothing_is_read_or_written_while_the_log_is_cut(harness):
    store, log = harness.open()
    harness.fill(log, 30)
    truncation = log.begin_truncation(5)
    for use in (lambda: harness.append(log, b"x"), lambda: log.read(0, 100), lambda: log.begin_truncation(3)):
        with pytest.raises(Refused, match="is being truncated"):
            use()
    assert log.expired_segments(1 << 60) == []
    store.checkpoint()
    truncation.run()
    log.finish_truncation(truncation)
    assert len(harness.values(log)) == log.end_offset == 5


def test_a_compaction_that_ran_meanwhile_is_not_believed(make_pond):
    harness = make_pond(limits=LogLimits(segment_bytes=500, cleanup_compact=True, min_cleanable_dirty_ratio=0.0))
    _, log = harness.open()
    harness.fill(log, 40)
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    harness.cut(log, 10)
    assert plan.cancelled
    log.finish_compaction(plan).run()
    assert len(harness.values(log)) == 10
    assert log.compaction_candidate(harness.now_ms) is not None


def test_markers_that_only_memory_knew_are_not_lost(harness):
    _, log = harness.open()
    verification = permitted(log.producers, 7, 0, 0, harness.now_ms)
    batch = harness.batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(batch, leader_epoch=0, now_ms=harness.now_ms, verification=verification)
    log.append_marker(7, 0, False, 0, now_ms=harness.now_ms, leader_epoch=0)
    harness.fill(log, 2)
    harness.cut(log, 3)
    assert log.aborted_transactions(0, 3) == [(7, 0)]


def test_what_others_were_told_is_committed_is_kept_aside_when_it_is_cut(harness, sim):
    store, log = harness.open()
    harness.fill(log, 30)
    harness.sync(log)
    files = {base: sim.read(f"{harness.partition}/{base:020d}.log") for base in log.segments.bases}
    cut_in = max(base for base in files if base < 14)
    truncation = log.begin_truncation(14, keeps=True)
    store.checkpoint()
    truncation.run()
    log.finish_truncation(truncation)
    kept = sim.read(f"{harness.partition}/{cut_in:020d}.log")
    assert kept + sim.read(f"{harness.partition}/{14:020d}.cut") == files[cut_in]
    for base in files:
        if base > 14:
            assert sim.read(f"{harness.partition}/{base:020d}.log.cut") == files[base]
    store.close()
    _, log = harness.open()
    assert (log.end_offset, len(harness.records(log))) == (14, 14)


def test_a_log_is_cut_though_there_is_no_room_to_keep_what_goes(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    truncation = log.begin_truncation(2, keeps=True)
    store.checkpoint()
    sim.fail_opens(".cut", code=28)
    truncation.run()
    log.finish_truncation(truncation)
    assert log.end_offset == 2
    assert log.failed is None


@pytest.mark.parametrize("seed", range(6))
def test_an_abort_that_was_cut_off_does_not_come_back(make_pond, seed):
    """Neither when the power goes after a clean end: the next transaction of that producer would be left out."""
    harness = make_pond(disk=SimDisk(seed))
    store, log = harness.open()

    def write(sequence):
        batch = harness.batch(b"v", producer_id=1, producer_epoch=0, base_sequence=sequence, transactional=True)
        verification = permitted(log.producers, 1, 0, sequence, harness.now_ms)
        return log.append(batch, leader_epoch=0, now_ms=harness.now_ms, verification=verification).first_offset

    write(0)
    log.append_marker(1, 0, False, 0, now_ms=harness.now_ms, leader_epoch=0)
    store.close()
    store, log = harness.open()
    assert log.aborted_transactions(0, 2) == [(1, 0)]
    harness.cut(log, 0)
    write(0)
    log.append_marker(1, 0, True, 0, now_ms=harness.now_ms, leader_epoch=0)
    store.close()
    harness.disk.crash()
    store, log = harness.open()
    assert log.aborted_transactions(0, 2) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_retired_files_are_forgotten_when_the_log_restarts(harness, sim, is_clean):
    """An unclean election has made a leader of an empty replica: the names of the first segments come again."""
    store, log = harness.open()
    harness.fill(log, 40)
    harness.sync(log)
    old = log.segments.bases[:2]
    removal = log.retire(log.segments[:2])
    harness.cut(log, 0)
    store.checkpoint()
    assert [name for name in sim.list(harness.partition) if name.endswith(".log")] == [f"{0:020d}.log"]
    harness.fill(log, 40)
    assert log.segments.bases[:2] == old
    if removal.begin():
        removal.run()
    store.close() if is_clean else store.abandon()
    _, log = harness.open()
    assert (log.start_offset, log.end_offset, len(harness.records(log))) == (0, 40, 40)


@pytest.mark.parametrize("is_new_start", [False, True])
def test_what_a_compaction_has_left_is_not_put_in_place_of_what_comes_after_a_cut(make_pond, is_new_start):
    limits = LogLimits(
        segment_bytes=1000, index_interval_bytes=150, cleanup_compact=True, min_cleanable_dirty_ratio=0.0
    )
    harness = make_pond(limits=limits)
    store, log = harness.open()
    for number in range(90):
        harness.append(log, b"old", key=b"k%d" % (number % 50))
    harness.sync(log)
    store.checkpoint()
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    harness.cut(log, 200 if is_new_start else 20, is_new_start=is_new_start)
    left = log.finish_compaction(plan)
    assert left.begin()
    left.end(is_done=False)
    for number in range(50):
        harness.append(log, b"new", key=b"k%d" % number)
    harness.sync(log)
    before = harness.values(log)
    harness.disk.drop_process()
    _, log = harness.open()
    assert harness.values(log) == before


@pytest.mark.parametrize("seed", seeds(range(5)))
def test_a_cut_whose_sync_fails_is_known_of_after_a_kill(make_pond, seed):
    harness = make_pond(disk=SimDisk(seed))
    store, log = harness.open()
    harness.fill(log, 20)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, 30, start=20)
    truncation = log.begin_truncation(45)
    store.checkpoint()
    harness.disk.fail_syncs(".log")
    with pytest.raises(OSError):
        truncation.run()
    harness.disk.drop_process()
    harness.disk.heal()
    store, log = harness.open()
    harness.sync(log)
    store.checkpoint()
    safe = log.synced_offset
    harness.disk.crash()
    _, log = harness.open()
    assert log.end_offset == safe
