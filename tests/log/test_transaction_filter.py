"""Compaction and transactions: what was aborted goes, markers outlive their records by their time, no longer."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.permissions import permitted

from millpond.log import recovery
from millpond.log.aborted_transactions import Aborted, AbortedIndex
from millpond.log.limits import LogLimits
from millpond.log.markers import Marker
from millpond.log.open_files import OpenFiles
from millpond.log.transaction_filter import TransactionFilter
from millpond.sim.world.disk import SimDisk
from millpond.wire.batch import read_header
from millpond.wire.records import Record, encode_batch

COMPACT = LogLimits(
    segment_bytes=500,
    index_interval_bytes=150,
    cleanup_delete=False,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1000,
    producer_id_expiration_ms=10,
)


def header(offset, producer=1, transactional=True):
    record = Record(offset, 5, b"k", b"v")
    return read_header(
        encode_batch(
            [record], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=transactional
        )
    )


def test_only_records_inside_an_aborted_transaction_of_their_producer_are_aborted():
    known = TransactionFilter([Aborted(1, 3, 6, 7), Aborted(1, 10, 12, 13), Aborted(2, 4, 5, 6)])
    verdicts = {offset: known.is_aborted(header(offset)) for offset in (2, 3, 5, 7, 9, 10, 11, 13)}
    assert verdicts == {2: False, 3: True, 5: True, 7: False, 9: False, 10: True, 11: True, 13: False}
    assert not known.is_aborted(header(4, producer=3))
    assert not known.is_aborted(header(4, transactional=False))


def test_a_marker_is_needed_as_long_as_a_batch_of_its_transaction_is_there():
    commit = Marker(committed=True, coordinator_epoch=0)
    known = TransactionFilter()
    assert not known.is_needed_by_records(header(1), commit)
    known.on_data(header(2))
    assert not known.is_needed_by_records(header(3, producer=2), commit)
    assert not known.is_needed_by_records(header(3), None), "already emptied"
    assert known.is_needed_by_records(header(4), commit)
    assert not known.is_needed_by_records(header(5), commit)


def test_every_marker_is_kept_while_removed_segments_may_come_back():
    known = TransactionFilter(keeps_ends=True)
    assert known.is_needed_by_records(header(1), Marker(committed=True, coordinator_epoch=0))
    assert not known.is_needed_by_records(header(3), None), "already emptied"


def test_entries_of_markers_that_stay_go_to_the_new_index():
    disk = SimDisk()
    disk.make_folder("/data")
    abort = Marker(committed=False, coordinator_epoch=0)
    kept, gone = Aborted(1, 2, 4, 5), Aborted(2, 3, 5, 6)
    known = TransactionFilter([kept, gone])
    known.target = AbortedIndex(OpenFiles(disk), "/data/x.txnindex")
    known.target.start()
    assert known.on_data(header(2))
    known.is_needed_by_records(header(4), abort)
    known.is_needed_by_records(header(5, producer=2), abort)
    assert known.target.entries() == [kept]


# In a log


class Writer:
    """A producer of transactions v1."""

    def __init__(self, harness, log, producer=7):
        self.harness, self.log, self.producer, self.sequence = harness, log, producer, 0

    def put(self, key, value):
        log, producer = self.log, self.producer
        batch = self.harness.batch(
            value, key=key, producer_id=producer, producer_epoch=0, base_sequence=self.sequence, transactional=True
        )
        verification = permitted(log.producers, producer, 0, self.sequence, self.harness.now_ms)
        self.sequence += 1
        return log.append(batch, leader_epoch=0, now_ms=self.harness.now_ms, verification=verification).first_offset

    def end(self, committed):
        return self.log.append_marker(
            self.producer, 0, committed, 0, now_ms=self.harness.now_ms, leader_epoch=0
        ).first_offset


def compact(harness, log):
    plan = log.compaction_candidate(harness.now_ms)
    assert plan is not None
    plan.run()
    log.finish_compaction(plan).run()


def markers(log):
    """Offsets of the control batches that still say something."""
    return [
        found.base_offset
        for segment in log.segments
        for _, found in segment.batches_from(segment.base_offset)
        if found.is_control and found.record_count
    ]


@pytest.fixture
def stage(make_pond):
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    return harness, store, log


def test_aborted_records_neither_stay_nor_hide_what_they_would_have_replaced(stage):
    harness, _, log = stage
    harness.append(log, b"good", key=b"a")
    writer = Writer(harness, log)
    writer.put(b"a", b"bad")
    writer.end(committed=False)
    harness.fill(log, 10)
    compact(harness, log)
    assert [record.value for record in harness.records(log) if record.key == b"a"] == [b"good"]


def test_committed_records_and_tombstones_replace_as_others_do(stage):
    harness, _, log = stage
    harness.append(log, b"old", key=b"a")
    harness.append(log, b"old", key=b"b")
    writer = Writer(harness, log)
    writer.put(b"a", b"new")
    writer.put(b"b", None)
    writer.end(committed=True)
    harness.fill(log, 10)
    compact(harness, log)
    found = {record.key: record.value for record in harness.records(log)}
    assert (found[b"a"], found[b"b"]) == (b"new", None)


def test_nothing_from_an_open_transaction_on_is_touched(stage):
    harness, _, log = stage
    harness.fill(log, 10)
    writer = Writer(harness, log)
    first = writer.put(b"a", b"undecided")
    harness.fill(log, 20)
    before = [record for record in harness.records(log) if record.offset >= first]
    compact(harness, log)
    assert [record for record in harness.records(log) if record.offset >= first] == before
    assert log.last_stable_offset == first


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_stays_for_its_time_after_its_last_record_and_not_longer(stage, committed):
    harness, _, log = stage
    writer = Writer(harness, log)
    writer.put(b"k", b"value")
    marker = writer.end(committed)
    harness.fill(log, 10)
    harness.now_ms += 20
    log.expire_producers(harness.now_ms)
    compact(harness, log)
    assert markers(log) == [marker], "its record was there until now"
    harness.fill(log, 10)
    compact(harness, log)
    assert markers(log) == [marker], "its time begins to run"
    harness.now_ms += 999
    harness.fill(log, 10)
    compact(harness, log)
    assert markers(log) == [marker]
    harness.now_ms += 1
    harness.fill(log, 10)
    compact(harness, log)
    assert markers(log) == []
    assert log.aborted_transactions(0, log.end_offset) == []


def test_the_marker_of_a_record_that_is_still_the_latest_stays(stage):
    harness, _, log = stage
    writer = Writer(harness, log)
    writer.put(b"mine", b"value")
    marker = writer.end(committed=True)
    for _ in range(4):
        harness.fill(log, 10)
        compact(harness, log)
        harness.now_ms += 2_000
        log.expire_producers(harness.now_ms)
    assert markers(log) == [marker]


def test_a_living_producer_is_remembered_by_its_marker(make_pond):
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    log.append_marker(5, 3, committed=True, coordinator_epoch=0, now_ms=harness.now_ms, leader_epoch=0)
    for _ in range(3):
        harness.fill(log, 10)
        compact(harness, log)
        harness.now_ms += 2_000
    assert markers(log) == []
    store.abandon()
    for name in harness.disk.list(harness.partition):
        if name.endswith(".snapshot"):
            harness.disk.remove(f"{harness.partition}/{name}")
    _, log = harness.open()
    assert [facts.producer_epoch for facts in log.producer_states() if facts.producer_id == 5] == [3]


@pytest.mark.parametrize("clean", [True, False])
def test_no_old_snapshot_opens_a_transaction_again_whose_marker_is_gone(make_pond, clean):
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    writer = Writer(harness, log)
    writer.put(b"k", b"value")
    log.roll()
    writer.end(committed=True)
    harness.fill(log, 10)
    for _ in range(4):
        harness.now_ms += 1_000
        log.expire_producers(harness.now_ms)
        harness.fill(log, 10)
        compact(harness, log)
    assert markers(log) == []
    assert all(harness.disk.exists(f"{harness.partition}/{offset:020d}.snapshot") for offset in log.snapshots.offsets)
    # The newest snapshots are lost; the older ones must not know more than the log does.
    store.close() if clean else store.abandon()
    names = sorted(name for name in harness.disk.list(harness.partition) if name.endswith(".snapshot"))
    for name in names[1:]:
        harness.disk.remove(f"{harness.partition}/{name}")
    _, log = harness.open()
    assert log.last_stable_offset == log.end_offset


def test_nor_does_one_that_outlives_a_power_cut_in_the_middle_of_the_swap(make_pond):
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    writer = Writer(harness, log)
    writer.put(b"k", b"value")
    log.roll()
    name = f"{harness.partition}/{1:020d}.snapshot"
    knows_it_as_open = harness.disk.read(name)
    writer.end(committed=True)
    harness.fill(log, 10)
    for _ in range(4):
        harness.now_ms += 1_000
        log.expire_producers(harness.now_ms)
        harness.fill(log, 10)
        plan = log.compaction_candidate(harness.now_ms)
        plan.run()
        if plan.drops_markers:
            break
        log.finish_compaction(plan).run()
    assert plan.drops_markers
    store.abandon()
    harness.disk.replace(name, knows_it_as_open)
    for other in harness.disk.list(harness.partition):
        if other.endswith(".snapshot") and not name.endswith(other):
            harness.disk.remove(f"{harness.partition}/{other}")
    _, log = harness.open()
    assert markers(log) == []
    assert log.last_stable_offset == log.end_offset
    assert 1 not in log.snapshots.offsets


@pytest.mark.parametrize("is_broken_off", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_was_aborted_is_known_after_a_compaction_that_was_given_up_and_a_power_cut(
    make_pond, monkeypatch, seed, is_broken_off
):
    """Its removal was killed half way, the start makes indexes again, and the power goes: before the first sync, or
    in the middle of that start."""
    harness = make_pond(disk=SimDisk(seed), limits=COMPACT)
    store, log = harness.open()
    harness.append(log, b"good", key=b"a")
    writer = Writer(harness, log)
    writer.put(b"a", b"bad")
    writer.end(committed=False)
    harness.fill(log, 10)
    harness.sync(log)
    store.checkpoint()
    before = log.aborted_transactions(0, log.end_offset)
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    for path in log.give_up_compaction(plan).paths:
        if ".log" in path:
            harness.disk.remove(path)
            harness.disk.sync_folder(harness.partition)
    harness.disk.drop_process()
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        if is_broken_off:
            patch.setattr(recovery._Opener, "_keep_rebuilt", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        harness.open()
    harness.disk.crash()
    _, log = harness.open()
    assert before == log.aborted_transactions(0, log.end_offset) != []
    assert "unsettled" not in harness.disk.list(harness.partition)


@pytest.mark.parametrize("is_removed", [False, True])
def test_what_a_kill_brings_back_is_aborted_or_deleted_as_before(make_pond, is_removed):
    """Retention took the beginning, compactions went over the rest, and a kill came before the files were removed."""
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    writer = Writer(harness, log)
    harness.append(log, b"old", key=b"deleted")
    writer.put(b"aborted", b"bad")
    log.roll()
    writer.end(committed=False)
    tombstone = encode_batch([Record(0, harness.now_ms, b"deleted", None)])
    log.append(memoryview(bytearray(tombstone)), leader_epoch=0, now_ms=harness.now_ms)
    log.roll()
    harness.fill(log, 1)
    harness.sync(log)
    job = log.retire([log.segments[0]])
    if is_removed:
        harness.remove(job)
    for _ in range(3):
        compact(harness, log)
        harness.now_ms += 5_000
        log.expire_producers(harness.now_ms)
        log.roll()
        harness.fill(log, 1)
    harness.sync(log)
    assert bool(markers(log)) is not is_removed
    store.abandon()
    _, log = harness.open()
    assert (log.start_offset == 0) is not is_removed
    assert is_removed or log.aborted_transactions(0, log.end_offset) == [(7, 1)]
    latest = {record.key: record.value for record in harness.records(log)}
    assert latest.get(b"deleted") is None


@pytest.mark.parametrize("how", ["restart", "cut"])
def test_a_snapshot_from_before_the_logs_beginning_opens_no_transaction(make_pond, how):
    """Its end is gone with what followed the snapshot, and nobody would ever end it again."""
    harness = make_pond(limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, log = harness.open()
    writer = Writer(harness, log)
    writer.put(b"k", b"value")
    log.roll()
    writer.end(committed=True)
    log.roll()
    harness.fill(log, 3)
    harness.sync(log)
    store.checkpoint()
    # That of the new beginning is lost: it was torn by a power cut, say.
    log.snapshots.drop(2)
    harness.remove(log.retire(log.segments[:2]))
    assert log.snapshots.offsets == [1]
    if how == "restart":
        store.abandon()
        _, log = harness.open()
    else:
        harness.cut(log, log.end_offset - 1)
    assert log.start_offset == 2
    assert log.last_stable_offset == log.end_offset


def test_a_transaction_of_which_no_record_is_left_is_not_open_after_a_kill(make_pond):
    """Nothing is safe yet: the snapshot of the log's beginning may be of a history that a power cut has ended."""
    harness = make_pond(limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, log = harness.open()
    Writer(harness, log).put(b"k", b"value")
    log.roll()
    harness.fill(log, 1)
    harness.remove(log.retire([log.segments[0]]))
    store.abandon()
    _, log = harness.open()
    assert [(each.producer_id, each.last_sequence, each.transaction_start) for each in log.producer_states()] == [
        (7, 0, -1)
    ]
    assert log.last_stable_offset == log.end_offset


def test_a_snapshot_of_a_history_that_a_power_cut_has_ended_is_not_believed(make_pond):
    """Its removal did not outlive the second power cut, and the log has come to the same offset again."""
    harness = make_pond(limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, log = harness.open()
    harness.fill(log, 1)
    harness.sync(log)
    store.checkpoint()
    writer = Writer(harness, log)
    writer.put(b"k", b"lost")
    log.roll()
    name = f"{harness.partition}/{2:020d}.snapshot"
    of_the_lost = harness.disk.read(name)
    harness.cut(log, 1)
    harness.fill(log, 1)
    store.abandon()
    harness.disk.replace(name, of_the_lost)
    store, log = harness.open()
    assert log.end_offset == 2
    store.close()
    _, log = harness.open()
    assert log.last_stable_offset == log.end_offset


def retiring(harness):
    """A log whose first segment has an aborted transaction, and the job that has begun to remove it."""
    store, log = harness.open()
    writer = Writer(harness, log)
    writer.put(b"a", b"bad")
    writer.end(committed=False)
    log.roll()
    harness.fill(log, 1)
    harness.sync(log)
    store.checkpoint()
    job = log.retire([log.segments[0]])
    assert job.begin()
    return store, job


@pytest.mark.parametrize("seed", range(40))
def test_a_list_whose_log_may_come_back_stays_with_it(make_pond, seed):
    """A removal was killed before its sync, and the power goes after the next start."""
    harness = make_pond(disk=SimDisk(seed), limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, job = retiring(harness)
    harness.disk.remove(next(path for path in job.paths if path.endswith(".log")))
    store.abandon()
    harness.disk.drop_process()
    harness.open()
    harness.disk.crash()
    _, log = harness.open()
    assert log.start_offset > 0 or log.aborted_transactions(0, log.end_offset) == [(7, 0)]


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_producer_of_whom_only_a_marker_is_left_goes_on_with_its_sequence(make_pond, how):
    harness = make_pond(limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, log = harness.open()
    writer = Writer(harness, log)
    writer.put(b"a", b"one")
    log.roll()
    writer.end(committed=True)
    harness.fill(log, 2)
    log.snapshots.drop_after(1 if how == "kill" else 0)
    harness.remove(log.retire([log.segments[0]]))
    if how == "kill":
        store.abandon()
        _, log = harness.open()
        writer.log = log
    else:
        harness.cut(log, log.end_offset - 1)
    assert log.start_offset == 1
    writer.put(b"a", b"two")


@pytest.mark.parametrize("removed", range(5))
def test_a_removal_that_is_broken_off_leaves_what_was_aborted_aborted(make_pond, removed):
    harness = make_pond(limits=LogLimits(segment_bytes=500, index_interval_bytes=150))
    store, job = retiring(harness)
    for path in job.paths[:removed]:
        harness.disk.remove(path)
    store.abandon()
    _, log = harness.open()
    is_back = log.start_offset == 0
    assert is_back is (f"{0:020d}.log" not in {path.rpartition("/")[2] for path in job.paths[:removed]})
    assert log.aborted_transactions(0, log.end_offset) == [(7, 0)] * is_back
    assert any(name.startswith(f"{0:020d}") for name in harness.disk.list(harness.partition)) is is_back
