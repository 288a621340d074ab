"""The log of a replica that follows: batches as the leader has them, and crashes at every disk operation of a cut."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import EpochEnd
from millpond.log.limits import LogLimits
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.wire.batch import patch_offset_and_epoch

SMALL = LogLimits(segment_bytes=400, index_interval_bytes=150)


def batch(harness, offset, *values, epoch=0, **fields):
    made = harness.batch(*values, **fields)
    patch_offset_and_epoch(made, 0, offset, epoch)
    return made


def follow(harness, log, offset, *values, epoch=0, **fields):
    log.append_follower(batch(harness, offset, *values, epoch=epoch, **fields), now_ms=harness.now_ms)


def test_a_cut_between_batches_that_compaction_has_left_is_believed_after_a_clean_end(harness):
    store, log = harness.open()
    follow(harness, log, 0, b"a")
    follow(harness, log, 10, b"b")
    harness.sync(log)
    harness.cut(log, 5)
    harness.sync(log)
    assert log.synced_offset <= log.end_offset
    store.close()
    store, log = harness.open()
    assert harness.values(log) == {0: b"a"}


def test_the_end_of_an_epoch_is_answered_as_offset_for_leader_epoch_requires(harness):
    _, log = harness.open()
    assert log.end_of(3) is None
    follow(harness, log, 0, b"a", b"b", epoch=2)
    follow(harness, log, 2, b"c", epoch=4)
    assert [log.end_of(epoch) for epoch in (1, 2, 3, 4, 9)] == [
        EpochEnd(1, 0),
        EpochEnd(2, 2),
        EpochEnd(2, 2),
        EpochEnd(4, 3),
        EpochEnd(4, 3),
    ]
    assert log.last_epoch == 4


def test_a_batch_of_an_epoch_that_is_over_is_refused_whole(harness):
    _, log = harness.open()
    follow(harness, log, 0, b"a", epoch=4)
    both = batch(harness, 1, b"b", epoch=5).tobytes() + batch(harness, 2, b"c", epoch=3).tobytes()
    with pytest.raises(Refused, match="leader epoch 3 cannot follow"):
        log.append_follower(memoryview(bytearray(both)), now_ms=harness.now_ms)
    assert (log.end_offset, log.last_epoch) == (1, 4)


def test_gaps_that_compaction_left_at_the_leader_are_taken_over(harness):
    _, log = harness.open()
    follow(harness, log, 0, b"a")
    follow(harness, log, 40, b"b")
    assert (log.end_offset, harness.values(log)) == (41, {0: b"a", 40: b"b"})


def test_the_first_batch_may_begin_below_the_start(harness, sim):
    store, log = harness.open()
    harness.fill(log, 3)
    harness.cut(log, 105, is_new_start=True)
    follow(harness, log, 100, *(b"v%d" % number for number in range(10)), epoch=3)
    follow(harness, log, 110, b"w", epoch=3)
    assert (log.start_offset, log.end_offset, log.segments.bases) == (105, 111, [100])
    assert sorted(harness.values(log)) == list(range(105, 111))
    harness.sync(log)
    store.checkpoint()
    store.abandon()
    sim.crash()
    _, log = harness.open()
    assert (log.start_offset, sorted(harness.values(log))) == (105, list(range(105, 111)))
    with pytest.raises(Refused) as refused:
        follow(harness, log, 104, *(b"x" for _ in range(20)), epoch=3)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE, "only an empty log can begin below its start"


def test_nothing_is_synced_while_the_log_is_cut(harness):
    _, log = harness.open()
    harness.fill(log, 30)
    truncation = log.begin_truncation(5)
    with pytest.raises(OSError, match="is being truncated"):
        log.sync_target()
    assert log.durability.away, "a new topic of the same name has to wait"
    truncation.run()
    log.finish_truncation(truncation)
    harness.sync(log)
    assert (log.synced_offset, bool(log.durability.away)) == (5, False)


def test_a_log_that_was_deleted_meanwhile_stays_as_it_is(harness):
    store, log = harness.open()
    harness.fill(log, 30)
    truncation = log.begin_truncation(5)
    removal = store.delete(harness.tp)
    assert store.is_leaving(harness.tp)
    with pytest.raises(OSError):
        truncation.run()
    log.finish_truncation(truncation, OSError("gone"))
    assert not store.is_leaving(harness.tp)
    removal.run()


def test_epochs_without_a_record_can_be_forgotten_without_a_worker(harness):
    _, log = harness.open()
    harness.fill(log, 3)
    harness.sync(log)
    log.epochs.assign(4, 3)
    log.forget_epochs_at_end()
    assert (log.last_epoch, log.dirty) == (0, True)


def test_a_cut_that_is_given_up_leaves_the_log_as_it_was(harness):
    _, log = harness.open()
    harness.fill(log, 30)
    harness.sync(log)
    log.give_up_truncation(log.begin_truncation(5))
    assert (log.end_offset, log.synced_offset, bool(log.durability.away)) == (30, 5, False)
    harness.append(log, b"x")
    harness.sync(log)
    assert (log.synced_offset, len(harness.values(log))) == (31, 31)


def life(harness, *, is_new_start):
    """Another history won: this replica is truncated or restarted, and follows the winner."""
    store, log = harness.open()
    for number in range(20):
        follow(harness, log, number, b"old-%d" % number, epoch=4 + number // 10 * 2)
        if number == 15:
            harness.sync(log)
            store.checkpoint()
    offset = 60 if is_new_start else 8
    harness.cut(log, offset, is_new_start=is_new_start)
    for number in range(offset, offset + 10):
        follow(harness, log, number, b"new-%d" % number, epoch=5)
    harness.sync(log)
    store.checkpoint()
    follow(harness, log, offset + 10, b"new-%d" % (offset + 10), epoch=7)
    store.close()


def derived(log):
    """What the log's own batches say of its epochs."""
    entries = []
    for segment in log.segments:
        for _, header in segment.batches_from(segment.base_offset):
            if not entries or entries[-1][0] != header.leader_epoch:
                entries.append((header.leader_epoch, header.base_offset))
    return entries


@pytest.mark.parametrize("is_new_start", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_power_may_go_at_every_operation_of_a_cut(make_pond, seed, is_new_start):
    whole = make_pond(disk=SimDisk(seed), limits=SMALL)
    life(whole, is_new_start=is_new_start)
    offset = 60 if is_new_start else 8
    for number in range(1, whole.disk.operations + 1):
        harness = make_pond(disk=SimDisk(seed * 1000 + number), limits=SMALL)
        harness.disk.crash_at_operation(number)
        with pytest.raises(PowerCut):
            life(harness, is_new_start=is_new_start)
        harness.disk.crash()
        store, log = harness.open()
        values = harness.values(log)
        old = {each: b"old-%d" % each for each in range(20)}
        kept = {} if is_new_start else {each: b"old-%d" % each for each in range(offset)}
        new = kept | {each: b"new-%d" % each for each in range(offset, offset + 11)}
        assert values.items() <= new.items() or values.items() <= old.items(), f"operation {number}"
        assert sorted(values) == list(range(log.start_offset, log.end_offset)), f"operation {number}"
        log.epochs.cut_start(log.start_offset)
        assert log.epochs.entries == derived(log), f"operation {number}"
        store.close()
