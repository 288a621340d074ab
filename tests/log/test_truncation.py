from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode, Refused


def test_the_log_ends_where_it_was_cut(pond):
    _, log = pond.open()
    for number in range(30):
        pond.append(
            log, b"value-%d" % number, epoch=number // 10, producer_id=1, producer_epoch=0, base_sequence=number
        )
    log.truncate_to(14)
    assert (log.end_offset, log.latest_epoch) == (14, 1)
    assert pond.values(log) == {number: b"value-%d" % number for number in range(14)}
    assert log.producers.entries[1].last_sequence == 13
    assert max(log.snapshots.offsets, default=0) <= 14
    assert pond.append(log, b"other", epoch=5, producer_id=1, producer_epoch=0, base_sequence=14) == 14
    log.truncate_to(99)
    assert log.end_offset == 15


def test_a_batch_is_kept_whole_or_not_at_all(pond, sim):
    store, log = pond.open()
    pond.append(log, b"a", b"b")
    pond.append(log, b"c", b"d", b"e")
    pond.sync(log)
    log.truncate_to(4)
    assert (log.end_offset, log.synced_offset) == (2, 2)
    store.abandon()
    sim.crash()
    assert pond.values(pond.open()[1]) == {0: b"a", 1: b"b"}


def test_everything_can_go(pond):
    _, log = pond.open()
    pond.fill(log, 30)
    log.truncate_to(0)
    assert (log.start_offset, log.end_offset, log.bases) == (0, 0, [0])
    pond.fill(log, 2)
    assert len(pond.records(log)) == 2


def test_a_cut_below_the_oldest_segment_begins_anew_there(pond):
    _, log = pond.open()
    pond.fill(log, 30)
    pond.sync(log)
    log.retire(log.segments[:2])
    log.truncate_to(3)
    assert (log.start_offset, log.end_offset, log.bases) == (3, 3, [3])
    assert pond.append(log, b"x") == 3


def test_an_older_sync_says_nothing_about_what_came_after_the_cut(pond):
    _, log = pond.open()
    pond.fill(log, 6)
    ticket = log.sync_target()
    ticket.run()
    log.truncate_to(2)
    pond.fill(log, 4)
    log.synced(ticket)
    assert log.synced_offset == 0
    pond.sync(log)
    assert log.synced_offset == 6


def test_a_disk_that_fails_half_way_takes_the_log_offline(pond, sim):
    _, log = pond.open()
    pond.fill(log, 6)
    sim.fail_syncs("pond-0")
    with pytest.raises(Refused) as refused:
        log.truncate_to(2)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed is not None
