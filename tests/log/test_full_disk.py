"""A log that finds no room or no descriptor, and then finds some again, or is killed first."""

from __future__ import annotations

import contextlib
import errno

import pytest

from millpond.base.errors import Refused
from millpond.log.limits import LogLimits
from millpond.log.names import BEGUN, FAILED_SYNC_FILE, START_FILE
from millpond.sim.world.disk import PowerCut, SimDisk, SimFile
from support.seeds import seeds
from support.transaction_model import Model

START = 3
"""Where the leader's log begins: inside its first batch."""


class Follower:
    """It restarts at its leader's log start, which lies inside a batch."""

    def __init__(self, make_pond, seed=0, *, is_noted=True):
        leader = make_pond()
        _, self.leader = leader.open()
        leader.append(self.leader, *[b"first-%d" % number for number in range(8)])
        leader.fill(self.leader, 60)
        self.harness = make_pond(disk=SimDisk(seed))
        self.store, self.log = self.harness.open()
        self.harness.cut(self.log, START, is_new_start=True)
        self.harness.sync(self.log)
        if is_noted:
            self.store.checkpoint()

    def fetch(self):
        batches = bytearray(self.leader.read_batches(self.log.end_offset, 700))
        self.log.append_follower(memoryview(batches), now_ms=self.harness.now_ms)

    def catch_up(self):
        while self.log.end_offset < self.leader.end_offset:
            self.fetch()
        self.harness.sync(self.log)
        self.store.checkpoint()

    def start_again(self):
        self.harness.disk.drop_process()
        self.store, self.log = self.harness.open()

    def has_all(self):
        there = [record.offset for record in self.harness.records(self.log)]
        return there == list(range(START, self.leader.end_offset))


def test_a_follower_that_begins_inside_a_batch_and_finds_no_room_at_first_loses_nothing(make_pond):
    follower = Follower(make_pond)
    follower.harness.disk.fill()
    for _ in range(3):
        with pytest.raises(Refused):
            follower.fetch()
    follower.harness.disk.make_room()
    follower.catch_up()
    assert follower.has_all()
    follower.store.abandon()
    follower.start_again()
    assert follower.has_all()
    assert not any(name.endswith(BEGUN) for name in follower.harness.disk.list(follower.harness.partition))


def test_a_follower_that_is_killed_before_its_first_batch_has_room_begins_again(make_pond):
    _check_it_begins_again_without_room(Follower(make_pond))


def _check_it_begins_again_without_room(follower):
    """Killed before there was room for its first batch."""
    follower.harness.sync(follower.log)
    follower.store.checkpoint()
    follower.harness.disk.fill()
    with pytest.raises(Refused):
        follower.fetch()
    follower.store.abandon()
    follower.harness.disk.make_room()
    follower.start_again()
    assert (follower.log.start_offset, follower.log.end_offset) == (START, START)
    follower.catch_up()
    assert follower.has_all()


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_the_power_goes_while_a_follower_begins_inside_a_batch(make_pond, seed):
    follower = Follower(make_pond, seed)
    disk = follower.harness.disk
    disk.crash_at_operation(disk.operations + seed % 12)
    with contextlib.suppress(PowerCut):
        follower.catch_up()
    disk.crash()
    follower.start_again()
    assert follower.log.start_offset == START
    follower.catch_up()
    assert follower.has_all()
    follower.store.abandon()
    follower.start_again()
    assert follower.has_all()


def test_a_checkpoint_that_found_no_room_half_way_does_not_say_that_a_new_replica_has_something(make_pond):
    follower = Follower(make_pond, is_noted=False)
    follower.harness.disk.fail_opens(START_FILE, code=errno.ENOSPC)
    with pytest.raises(OSError, match=r"No space"):
        follower.store.checkpoint()
    follower.store.abandon()
    follower.harness.disk.heal()
    follower.start_again()
    _check_it_begins_again_without_room(follower)


def test_a_replica_that_could_not_begin_once_more_begins_at_the_next_start(make_pond):
    follower = Follower(make_pond)
    follower.catch_up()
    follower.harness.disk.fail_opens(BEGUN, code=errno.EMFILE)
    follower.harness.cut(follower.log, START, is_new_start=True)
    assert follower.log.failed is not None
    assert not any(name.endswith((".log", BEGUN)) for name in follower.harness.disk.list(follower.harness.partition))
    follower.store.abandon()
    follower.harness.disk.heal()
    follower.start_again()
    _check_it_begins_again_without_room(follower)


def test_a_replica_that_had_no_descriptor_for_its_first_segment_begins_where_it_was_to(make_pond):
    follower = Follower(make_pond)
    follower.harness.disk.fail_opens(f"{31:020}.log", code=errno.EMFILE)
    follower.harness.cut(follower.log, 31, is_new_start=True)
    assert follower.log.failed is not None
    follower.store.abandon()
    follower.harness.disk.heal()
    follower.start_again()
    assert (follower.log.start_offset, follower.log.end_offset) == (31, 31)


def test_a_cut_below_where_a_replica_was_begun_leaves_no_word_of_that(make_pond):
    follower = Follower(make_pond)
    follower.catch_up()
    follower.harness.cut(follower.log, 0)
    assert follower.log.end_offset == 0
    assert not any(name.endswith(BEGUN) for name in follower.harness.disk.list(follower.harness.partition))


@pytest.mark.parametrize("seed", seeds(range(60)))
@pytest.mark.parametrize("start", [5, 12])
def test_the_power_goes_when_the_start_has_moved_on_before_the_first_batch_is_synced(make_pond, seed, start):
    follower = Follower(make_pond, seed)
    follower.fetch()
    follower.harness.delete_before(follower.log, start)
    follower.harness.disk.crash()
    follower.start_again()
    _check_it_comes_through_a_second_cut(follower, start)


def _check_it_comes_through_a_second_cut(follower, start):
    """What the first start has made is as good as what it had found."""
    assert follower.log.end_offset in (START, start) or follower.log.end_offset >= 8
    follower.harness.sync(follower.log)
    follower.store.checkpoint()
    follower.fetch()
    follower.harness.disk.crash()
    follower.start_again()
    follower.catch_up()
    follower.harness.delete_before(follower.log, start)
    there = [record.offset for record in follower.harness.records(follower.log)]
    assert there == list(range(start, follower.leader.end_offset))


@pytest.mark.parametrize("need", ["one descriptor", ".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("is_synced", [True, False])
@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_roll_that_fails_leaves_nothing_behind(make_pond, need, is_synced, is_aborted):
    """The segment was found at a clean start, too small for an entry in an index; nothing was written to it since."""
    harness = make_pond(limits=LogLimits(segment_bytes=100_000, index_interval_bytes=4096))
    store, log = harness.open()
    model = Model(harness)
    model.write(log, 1, b"key", b"value")
    model.end(log, 1, not is_aborted)
    store.close()
    harness.disk.drop_process()
    store, log = harness.open()
    if need == "one descriptor":
        # The file of the new segment takes it.
        harness.disk.open_files_max = harness.disk.open_files + 1
    else:
        harness.disk.fail_opens(need, code=errno.EMFILE)
    with contextlib.suppress(Refused):
        log.roll()
    harness.disk.heal()
    harness.fill(log, 20)
    values, end = harness.values(log), log.end_offset
    if is_synced:
        harness.sync(log)
        store.checkpoint()
    store.abandon()
    harness.disk.drop_process()
    _, log = harness.open()
    assert (harness.values(log), log.end_offset) == (values, end)
    assert bool(log.aborted_transactions(0, end)) == is_aborted


def test_a_new_segment_that_cannot_be_emptied_is_not_left_there(harness, sim, monkeypatch):
    """What would follow it in the log before would be taken for the rest of a write without room."""
    store, log = harness.open()
    harness.fill(log, 5)
    sim.replace(f"{harness.partition}/{5:020}.log", b"left by somebody")

    def truncate(file, size):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(SimFile, "truncate", truncate)
        with pytest.raises(Refused):
            log.roll()
    harness.fill(log, 5, 5)
    harness.sync(log)
    store.checkpoint()
    store.abandon()
    sim.drop_process()
    _, log = harness.open()
    assert log.end_offset == 10


@pytest.mark.parametrize("left", [0, 1000, 20_000])
def test_a_clean_end_without_room_needs_none_at_the_next_start(make_pond, left):
    harness = make_pond(limits=LogLimits(segment_bytes=100_000, index_interval_bytes=150))
    store, log = harness.open()
    harness.fill(log, 500)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, 1, 500)
    harness.sync(log)
    harness.disk.fill()
    with pytest.raises(OSError, match="No space left"):
        store.close()
    harness.disk.drop_process()
    harness.disk.fill(left)
    _, log = harness.open()
    assert log.end_offset == 501


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_a_cut_that_fails_for_want_of_something_leaves_no_mark(harness, sim, code):
    """No sync has failed: existing data need not be rewritten, for which there would be no room."""
    store, log = harness.open()
    harness.fill(log, 10)
    harness.sync(log)
    truncation = log.begin_truncation(5)
    log.finish_truncation(truncation, OSError(code, "no"))
    store.checkpoint()
    assert log.failed is not None
    assert (FAILED_SYNC_FILE in sim.list(harness.partition)) == (code == errno.EIO)


def test_retention_makes_room_where_there_is_none(make_pond):
    harness = make_pond(limits=LogLimits(segment_bytes=10_000, index_interval_bytes=150, retention_ms=1000))
    _, log = harness.open()
    harness.fill(log, 1500)
    harness.sync(log)
    harness.disk.fill()
    harness.now_ms += 10_000
    expired = log.expired_segments(harness.now_ms)
    assert expired[-1] is log.segments.active
    harness.remove(log.retire(expired))
    assert (len(log.segments), log.start_offset) == (1, expired[-1].base_offset)
    assert harness.disk.free_bytes(harness.folder) > 100_000
    harness.remove(log.retire(log.expired_segments(harness.now_ms)))
    assert log.start_offset == log.end_offset == 1500


def test_retiring_only_the_last_segment_on_a_full_disk_is_refused(make_pond):
    harness = make_pond(limits=LogLimits(index_interval_bytes=150, retention_ms=1000))
    _, log = harness.open()
    harness.fill(log, 50)
    harness.disk.fill()
    harness.now_ms += 10_000
    with pytest.raises(Refused, match="No space left"):
        log.retire(log.expired_segments(harness.now_ms))
    assert len(harness.records(log)) == 50


def test_a_rewriting_that_cannot_have_room_does_not_try(make_pond):
    """It would take from all others what there is, for as long as it tries."""
    harness = make_pond(limits=LogLimits(segment_bytes=100_000))
    store, log = harness.open()
    harness.fill(log, 300)
    harness.disk.fail_syncs(".log")
    harness.sync_or_fail(log)
    store.abandon()
    harness.disk.heal()
    harness.disk.drop_process()
    harness.disk.fill(15_000)
    store = harness.store()
    harness.disk.trace.clear()
    assert "no space" in store.open(harness.now_ms).failed[harness.tp]
    assert not any("append" in line for line in harness.disk.trace)
    harness.disk.make_room()
    store.reopen(harness.tp, harness.limits, harness.now_ms)
    assert store.logs[harness.tp].end_offset == 300


def _noted_too_far(harness):
    """A power cut takes the end of the log, and with it the record that it was to begin with."""
    store, log = harness.open()
    harness.fill(log, 10)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, 20)
    harness.delete_before(log, 28)
    harness.disk.crash()


def _check_it_grows(harness, store):
    """What it gets is there after a kill: no start is noted that is not its own."""
    log = store.logs[harness.tp]
    harness.fill(log, 5)
    start, values = log.start_offset, harness.values(log)
    assert values
    store.abandon()
    harness.disk.drop_process()
    _, log = harness.open()
    assert (log.start_offset, harness.values(log)) == (start, values)


def test_a_start_that_finds_no_room_for_a_correction_keeps_only_that_log_closed(make_pond):
    for seed in range(20):
        harness = make_pond(disk=SimDisk(seed))
        _noted_too_far(harness)
        harness.disk.fill()
        store = harness.store()
        report = store.open(harness.now_ms)
        if not report.failed:
            # The end is there after all.
            store.abandon()
            continue
        assert "could not be checkpointed" in report.failed[harness.tp]
        store.reopen(harness.tp, harness.limits, harness.now_ms)
        assert harness.tp in store.failed
        harness.disk.make_room()
        store.reopen(harness.tp, harness.limits, harness.now_ms)
        _check_it_grows(harness, store)
        return
    pytest.fail("the end was never lost")


def test_a_log_that_is_opened_later_begins_where_it_is_noted_to_begin(make_pond):
    for seed in range(20):
        harness = make_pond(disk=SimDisk(seed))
        _noted_too_far(harness)
        harness.disk.fail_opens(".log", code=errno.EMFILE)
        store = harness.store()
        assert store.open(harness.now_ms).failed
        harness.disk.heal()
        job = store.begin_checkpoint()
        store.reopen(harness.tp, harness.limits, harness.now_ms)
        if harness.tp in store.logs and store.logs[harness.tp].start_offset == 28:
            continue
        # Another one is being written: not now.
        assert "another checkpoint" in store.failed[harness.tp]
        job.run()
        store.end_checkpoint(job)
        store.reopen(harness.tp, harness.limits, harness.now_ms)
        _check_it_grows(harness, store)
        return
    pytest.fail("the end was never lost")


@pytest.mark.parametrize("where", ["in a record", "in a length", "where an index begins"])
def test_damage_among_deleted_records_does_not_take_what_follows_them(make_pond, where):
    harness = make_pond(limits=LogLimits(segment_bytes=1_000_000, index_interval_bytes=150))
    store, log = harness.open()
    for number in range(40):
        harness.now_ms += 1
        harness.append(log, b"value-%d" % number)
    if where == "where an index begins":
        store.close()
        harness.disk.drop_process()
        store, log = harness.open()
    harness.sync(log)
    harness.delete_before(log, 40)
    harness.fill(log, 60, 40)
    harness.sync(log)
    store.abandon()
    harness.disk.drop_process()
    position, bit = (237, 6) if where == "in a length" else (300, 0)
    harness.disk.flip_bit(f"{harness.partition}/{0:020}.log", position, bit)
    before = harness.disk.contents()
    store = harness.store()
    failed = store.open(harness.now_ms).failed
    if failed:
        assert "was durable" in failed[harness.tp]
        path = f"{harness.partition}/{0:020}.log"
        assert harness.disk.contents()[path] == before[path]
    else:
        assert len(harness.records(store.logs[harness.tp])) == 60


def test_a_failed_sync_is_marked_though_the_log_had_failed_for_want_of_room_before(harness, sim, monkeypatch):
    store, log = harness.open()
    harness.fill(log, 10)
    ticket = log.sync_target()

    def truncate(file, size):
        raise OSError(errno.ENOSPC, "no room to shorten")

    sim.fill()
    with monkeypatch.context() as patched:
        patched.setattr(SimFile, "truncate", truncate)
        with pytest.raises(Refused):
            harness.append(log, b"x")
    assert log.failed is not None
    assert FAILED_SYNC_FILE not in sim.list(harness.partition)
    sim.fail_syncs(".log")
    sim.fail_opens(FAILED_SYNC_FILE, code=errno.ENOSPC)
    with pytest.raises(OSError, match="Input/output") as raised:
        ticket.run()
    log.fail(raised.value, ticket)
    sim.heal()
    store.checkpoint()
    assert FAILED_SYNC_FILE in sim.list(harness.partition)


@pytest.mark.parametrize("which", [".log", "pond-0"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_cut_whose_sync_finds_no_room_leaves_a_mark(harness, sim, which, code):
    """One that could not even begin, for want of a descriptor, has lost nothing."""
    store, log = harness.open()
    harness.fill(log, 20)
    sim.fail_syncs(which, code=code)
    sim.fail_opens(FAILED_SYNC_FILE, times=1, code=code)
    truncation = log.begin_truncation(5)
    with pytest.raises(OSError, match=r"No space|Too many") as raised:
        truncation.run()
    log.finish_truncation(truncation, raised.value)
    sim.heal()
    store.checkpoint()
    assert (FAILED_SYNC_FILE in sim.list(harness.partition)) == (code == errno.ENOSPC)
