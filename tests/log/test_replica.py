"""The log of a replica that follows: batches as the leader has them, and crashes at every disk operation of a cut."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.ids import EpochEnd
from millpond.log.limits import LogLimits
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.wire.batch import patch_offset_and_epoch

SMALL = LogLimits(segment_bytes=400, index_interval_bytes=150)


def batch(pond, offset, *values, epoch=0, **fields):
    made = pond.batch(*values, **fields)
    patch_offset_and_epoch(made, 0, offset, epoch)
    return made


def follow(pond, log, offset, *values, epoch=0, **fields):
    log.append_follower(batch(pond, offset, *values, epoch=epoch, **fields), now_ms=pond.now_ms)


def test_a_cut_between_batches_that_compaction_has_left_is_believed_after_a_clean_end(pond):
    store, log = pond.open()
    follow(pond, log, 0, b"a")
    follow(pond, log, 10, b"b")
    pond.sync(log)
    pond.cut(log, 5)
    pond.sync(log)
    assert log.synced_offset <= log.end_offset
    store.close()
    store, log = pond.open()
    assert pond.values(log) == {0: b"a"}


def test_where_an_epoch_ends_is_told_as_replicas_ask_it(pond):
    _, log = pond.open()
    assert log.end_of(3) is None
    follow(pond, log, 0, b"a", b"b", epoch=2)
    follow(pond, log, 2, b"c", epoch=4)
    assert [log.end_of(epoch) for epoch in (1, 2, 3, 4, 9)] == [
        EpochEnd(1, 0),
        EpochEnd(2, 2),
        EpochEnd(2, 2),
        EpochEnd(4, 3),
        EpochEnd(4, 3),
    ]
    assert log.last_epoch == 4


def test_a_batch_of_an_epoch_that_is_over_is_refused_whole(pond):
    _, log = pond.open()
    follow(pond, log, 0, b"a", epoch=4)
    both = batch(pond, 1, b"b", epoch=5).tobytes() + batch(pond, 2, b"c", epoch=3).tobytes()
    with pytest.raises(Refused, match="leader epoch 3 cannot follow"):
        log.append_follower(memoryview(bytearray(both)), now_ms=pond.now_ms)
    assert (log.end_offset, log.last_epoch) == (1, 4)


def test_gaps_that_compaction_left_at_the_leader_are_taken_over(pond):
    _, log = pond.open()
    follow(pond, log, 0, b"a")
    follow(pond, log, 40, b"b")
    assert (log.end_offset, pond.values(log)) == (41, {0: b"a", 40: b"b"})


def test_the_first_batch_may_begin_below_the_start(pond, sim):
    store, log = pond.open()
    pond.fill(log, 3)
    pond.cut(log, 105, is_new_start=True)
    follow(pond, log, 100, *(b"v%d" % number for number in range(10)), epoch=3)
    follow(pond, log, 110, b"w", epoch=3)
    assert (log.start_offset, log.end_offset, log.segments.bases) == (105, 111, [100])
    assert sorted(pond.values(log)) == list(range(105, 111))
    pond.sync(log)
    store.checkpoint()
    store.abandon()
    sim.crash()
    _, log = pond.open()
    assert (log.start_offset, sorted(pond.values(log))) == (105, list(range(105, 111)))
    with pytest.raises(Refused) as refused:
        follow(pond, log, 104, *(b"x" for _ in range(20)), epoch=3)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE, "only an empty log can begin below its start"


def test_nothing_is_synced_while_the_log_is_cut(pond):
    _, log = pond.open()
    pond.fill(log, 30)
    truncation = log.begin_truncation(5)
    with pytest.raises(OSError, match="is being truncated"):
        log.sync_target()
    assert log.durability.away, "a new topic of the same name has to wait"
    truncation.run()
    log.finish_truncation(truncation)
    pond.sync(log)
    assert (log.synced_offset, bool(log.durability.away)) == (5, False)


def test_a_log_that_was_deleted_meanwhile_stays_as_it_is(pond):
    store, log = pond.open()
    pond.fill(log, 30)
    truncation = log.begin_truncation(5)
    removal = store.delete(pond.tp)
    assert store.is_leaving(pond.tp)
    with pytest.raises(OSError):
        truncation.run()
    log.finish_truncation(truncation, OSError("gone"))
    assert not store.is_leaving(pond.tp)
    removal.run()


def test_epochs_without_a_record_can_be_forgotten_without_a_worker(pond):
    _, log = pond.open()
    pond.fill(log, 3)
    pond.sync(log)
    log.epochs.assign(4, 3)
    log.forget_epochs_at_end()
    assert (log.last_epoch, log.dirty) == (0, True)


def test_a_cut_that_is_given_up_leaves_the_log_as_it_was(pond):
    _, log = pond.open()
    pond.fill(log, 30)
    pond.sync(log)
    log.give_up_truncation(log.begin_truncation(5))
    assert (log.end_offset, log.synced_offset, bool(log.durability.away)) == (30, 5, False)
    pond.append(log, b"x")
    pond.sync(log)
    assert (log.synced_offset, len(pond.values(log))) == (31, 31)


def life(pond, *, is_new_start):
    """Another history won: this replica is cut back, or begins anew, and follows the winner."""
    store, log = pond.open()
    for number in range(20):
        follow(pond, log, number, b"old-%d" % number, epoch=4 + number // 10 * 2)
        if number == 15:
            pond.sync(log)
            store.checkpoint()
    offset = 60 if is_new_start else 8
    pond.cut(log, offset, is_new_start=is_new_start)
    for number in range(offset, offset + 10):
        follow(pond, log, number, b"new-%d" % number, epoch=5)
    pond.sync(log)
    store.checkpoint()
    follow(pond, log, offset + 10, b"new-%d" % (offset + 10), epoch=7)
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
        pond = make_pond(disk=SimDisk(seed * 1000 + number), limits=SMALL)
        pond.disk.crash_at_operation(number)
        with pytest.raises(PowerCut):
            life(pond, is_new_start=is_new_start)
        pond.disk.crash()
        store, log = pond.open()
        values = pond.values(log)
        old = {each: b"old-%d" % each for each in range(20)}
        kept = {} if is_new_start else {each: b"old-%d" % each for each in range(offset)}
        new = kept | {each: b"new-%d" % each for each in range(offset, offset + 11)}
        assert values.items() <= new.items() or values.items() <= old.items(), f"operation {number}"
        assert sorted(values) == list(range(log.start_offset, log.end_offset)), f"operation {number}"
        log.epochs.cut_start(log.start_offset)
        assert log.epochs.entries == derived(log), f"operation {number}"
        store.close()
