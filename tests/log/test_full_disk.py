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
    """It begins anew where its leader begins, and that lies inside a batch."""

    def __init__(self, make_pond, seed=0, *, is_noted=True):
        leader = make_pond()
        _, self.leader = leader.open()
        leader.append(self.leader, *[b"first-%d" % number for number in range(8)])
        leader.fill(self.leader, 60)
        self.pond = make_pond(disk=SimDisk(seed))
        self.store, self.log = self.pond.open()
        self.pond.cut(self.log, START, is_new_start=True)
        self.pond.sync(self.log)
        if is_noted:
            self.store.checkpoint()

    def fetch(self):
        batches = bytearray(self.leader.read_batches(self.log.end_offset, 700))
        self.log.append_follower(memoryview(batches), now_ms=self.pond.now_ms)

    def catch_up(self):
        while self.log.end_offset < self.leader.end_offset:
            self.fetch()
        self.pond.sync(self.log)
        self.store.checkpoint()

    def start_again(self):
        self.pond.disk.drop_process()
        self.store, self.log = self.pond.open()

    def has_all(self):
        there = [record.offset for record in self.pond.records(self.log)]
        return there == list(range(START, self.leader.end_offset))


def test_a_follower_that_begins_inside_a_batch_and_finds_no_room_at_first_loses_nothing(make_pond):
    follower = Follower(make_pond)
    follower.pond.disk.fill()
    for _ in range(3):
        with pytest.raises(Refused):
            follower.fetch()
    follower.pond.disk.make_room()
    follower.catch_up()
    assert follower.has_all()
    follower.store.abandon()
    follower.start_again()
    assert follower.has_all()
    assert not any(name.endswith(BEGUN) for name in follower.pond.disk.list(follower.pond.partition))


def test_a_follower_that_is_killed_before_its_first_batch_has_room_begins_again(make_pond):
    _check_it_begins_again_without_room(Follower(make_pond))


def _check_it_begins_again_without_room(follower):
    """Killed before there was room for its first batch."""
    follower.pond.sync(follower.log)
    follower.store.checkpoint()
    follower.pond.disk.fill()
    with pytest.raises(Refused):
        follower.fetch()
    follower.store.abandon()
    follower.pond.disk.make_room()
    follower.start_again()
    assert (follower.log.start_offset, follower.log.end_offset) == (START, START)
    follower.catch_up()
    assert follower.has_all()


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_the_power_goes_while_a_follower_begins_inside_a_batch(make_pond, seed):
    follower = Follower(make_pond, seed)
    disk = follower.pond.disk
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
    follower.pond.disk.fail_opens(START_FILE, code=errno.ENOSPC)
    with pytest.raises(OSError, match=r"No space"):
        follower.store.checkpoint()
    follower.store.abandon()
    follower.pond.disk.heal()
    follower.start_again()
    _check_it_begins_again_without_room(follower)


def test_a_replica_that_could_not_begin_once_more_begins_at_the_next_start(make_pond):
    follower = Follower(make_pond)
    follower.catch_up()
    follower.pond.disk.fail_opens(BEGUN, code=errno.EMFILE)
    follower.pond.cut(follower.log, START, is_new_start=True)
    assert follower.log.failed is not None
    assert not any(name.endswith((".log", BEGUN)) for name in follower.pond.disk.list(follower.pond.partition))
    follower.store.abandon()
    follower.pond.disk.heal()
    follower.start_again()
    _check_it_begins_again_without_room(follower)


def test_a_replica_that_had_no_descriptor_for_its_first_segment_begins_where_it_was_to(make_pond):
    follower = Follower(make_pond)
    follower.pond.disk.fail_opens(f"{31:020}.log", code=errno.EMFILE)
    follower.pond.cut(follower.log, 31, is_new_start=True)
    assert follower.log.failed is not None
    follower.store.abandon()
    follower.pond.disk.heal()
    follower.start_again()
    assert (follower.log.start_offset, follower.log.end_offset) == (31, 31)


def test_a_cut_below_where_a_replica_was_begun_leaves_no_word_of_that(make_pond):
    follower = Follower(make_pond)
    follower.catch_up()
    follower.pond.cut(follower.log, 0)
    assert follower.log.end_offset == 0
    assert not any(name.endswith(BEGUN) for name in follower.pond.disk.list(follower.pond.partition))


@pytest.mark.parametrize("seed", seeds(range(60)))
@pytest.mark.parametrize("start", [5, 12])
def test_the_power_goes_when_the_start_has_moved_on_before_the_first_batch_is_synced(make_pond, seed, start):
    follower = Follower(make_pond, seed)
    follower.fetch()
    follower.pond.delete_before(follower.log, start)
    follower.pond.disk.crash()
    follower.start_again()
    _check_it_comes_through_a_second_cut(follower, start)


def _check_it_comes_through_a_second_cut(follower, start):
    """What the first start has made is as good as what it had found."""
    assert follower.log.end_offset in (START, start) or follower.log.end_offset >= 8
    follower.pond.sync(follower.log)
    follower.store.checkpoint()
    follower.fetch()
    follower.pond.disk.crash()
    follower.start_again()
    follower.catch_up()
    follower.pond.delete_before(follower.log, start)
    there = [record.offset for record in follower.pond.records(follower.log)]
    assert there == list(range(start, follower.leader.end_offset))


@pytest.mark.parametrize("need", ["one descriptor", ".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("is_synced", [True, False])
@pytest.mark.parametrize("is_aborted", [True, False])
def test_a_roll_that_fails_leaves_nothing_behind(make_pond, need, is_synced, is_aborted):
    """The segment was found at a clean start, too small for an entry in an index; nothing was written to it since."""
    pond = make_pond(limits=LogLimits(segment_bytes=100_000, index_interval_bytes=4096))
    store, log = pond.open()
    model = Model(pond)
    model.write(log, 1, b"key", b"value")
    model.end(log, 1, not is_aborted)
    store.close()
    pond.disk.drop_process()
    store, log = pond.open()
    if need == "one descriptor":
        # The file of the new segment takes it.
        pond.disk.open_files_max = pond.disk.open_files + 1
    else:
        pond.disk.fail_opens(need, code=errno.EMFILE)
    with contextlib.suppress(Refused):
        log.roll()
    pond.disk.heal()
    pond.fill(log, 20)
    values, end = pond.values(log), log.end_offset
    if is_synced:
        pond.sync(log)
        store.checkpoint()
    store.abandon()
    pond.disk.drop_process()
    _, log = pond.open()
    assert (pond.values(log), log.end_offset) == (values, end)
    assert bool(log.aborted_transactions(0, end)) == is_aborted


def test_a_new_segment_that_cannot_be_emptied_is_not_left_there(pond, sim, monkeypatch):
    """What would follow it in the log before would be taken for the rest of a write without room."""
    store, log = pond.open()
    pond.fill(log, 5)
    sim.replace(f"{pond.partition}/{5:020}.log", b"left by somebody")

    def truncate(file, size):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(SimFile, "truncate", truncate)
        with pytest.raises(Refused):
            log.roll()
    pond.fill(log, 5, 5)
    pond.sync(log)
    store.checkpoint()
    store.abandon()
    sim.drop_process()
    _, log = pond.open()
    assert log.end_offset == 10


@pytest.mark.parametrize("left", [0, 1000, 20_000])
def test_a_clean_end_without_room_needs_none_at_the_next_start(make_pond, left):
    pond = make_pond(limits=LogLimits(segment_bytes=100_000, index_interval_bytes=150))
    store, log = pond.open()
    pond.fill(log, 500)
    pond.sync(log)
    store.checkpoint()
    pond.fill(log, 1, 500)
    pond.sync(log)
    pond.disk.fill()
    with pytest.raises(OSError, match="No space left"):
        store.close()
    pond.disk.drop_process()
    pond.disk.fill(left)
    _, log = pond.open()
    assert log.end_offset == 501


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_a_cut_that_fails_for_want_of_something_leaves_no_mark(pond, sim, code):
    """No sync has failed: what is there need not be written anew, for which there would be no room."""
    store, log = pond.open()
    pond.fill(log, 10)
    pond.sync(log)
    truncation = log.begin_truncation(5)
    log.finish_truncation(truncation, OSError(code, "no"))
    store.checkpoint()
    assert log.failed is not None
    assert (FAILED_SYNC_FILE in sim.list(pond.partition)) == (code == errno.EIO)


def test_retention_makes_room_where_there_is_none(make_pond):
    pond = make_pond(limits=LogLimits(segment_bytes=10_000, index_interval_bytes=150, retention_ms=1000))
    _, log = pond.open()
    pond.fill(log, 1500)
    pond.sync(log)
    pond.disk.fill()
    pond.now_ms += 10_000
    expired = log.expired_segments(pond.now_ms)
    assert expired[-1] is log.segments.active
    pond.remove(log.retire(expired))
    assert (len(log.segments), log.start_offset) == (1, expired[-1].base_offset)
    assert pond.disk.free_bytes(pond.folder) > 100_000
    pond.remove(log.retire(log.expired_segments(pond.now_ms)))
    assert log.start_offset == log.end_offset == 1500


def test_where_only_the_last_segment_is_to_go_a_want_of_room_is_told(make_pond):
    pond = make_pond(limits=LogLimits(index_interval_bytes=150, retention_ms=1000))
    _, log = pond.open()
    pond.fill(log, 50)
    pond.disk.fill()
    pond.now_ms += 10_000
    with pytest.raises(Refused, match="No space left"):
        log.retire(log.expired_segments(pond.now_ms))
    assert len(pond.records(log)) == 50


def test_a_rewriting_that_cannot_have_room_does_not_try(make_pond):
    """It would take from all others what there is, for as long as it tries."""
    pond = make_pond(limits=LogLimits(segment_bytes=100_000))
    store, log = pond.open()
    pond.fill(log, 300)
    pond.disk.fail_syncs(".log")
    pond.sync_or_fail(log)
    store.abandon()
    pond.disk.heal()
    pond.disk.drop_process()
    pond.disk.fill(15_000)
    store = pond.store()
    pond.disk.trace.clear()
    assert "no space" in store.open(pond.now_ms).failed[pond.tp]
    assert not any("append" in line for line in pond.disk.trace)
    pond.disk.make_room()
    store.reopen(pond.tp, pond.limits, pond.now_ms)
    assert store.logs[pond.tp].end_offset == 300


def _noted_too_far(pond):
    """A power cut takes the end of the log, and with it the record that it was to begin with."""
    store, log = pond.open()
    pond.fill(log, 10)
    pond.sync(log)
    store.checkpoint()
    pond.fill(log, 20)
    pond.delete_before(log, 28)
    pond.disk.crash()


def _check_it_grows(pond, store):
    """What it gets is there after a kill: no start is noted that is not its own."""
    log = store.logs[pond.tp]
    pond.fill(log, 5)
    start, values = log.start_offset, pond.values(log)
    assert values
    store.abandon()
    pond.disk.drop_process()
    _, log = pond.open()
    assert (log.start_offset, pond.values(log)) == (start, values)


def test_a_start_that_finds_no_room_for_a_correction_keeps_only_that_log_closed(make_pond):
    for seed in range(20):
        pond = make_pond(disk=SimDisk(seed))
        _noted_too_far(pond)
        pond.disk.fill()
        store = pond.store()
        report = store.open(pond.now_ms)
        if not report.failed:
            # The end is there after all.
            store.abandon()
            continue
        assert "could not be checkpointed" in report.failed[pond.tp]
        store.reopen(pond.tp, pond.limits, pond.now_ms)
        assert pond.tp in store.failed
        pond.disk.make_room()
        store.reopen(pond.tp, pond.limits, pond.now_ms)
        _check_it_grows(pond, store)
        return
    pytest.fail("the end was never lost")


def test_a_log_that_is_opened_later_begins_where_it_is_noted_to_begin(make_pond):
    for seed in range(20):
        pond = make_pond(disk=SimDisk(seed))
        _noted_too_far(pond)
        pond.disk.fail_opens(".log", code=errno.EMFILE)
        store = pond.store()
        assert store.open(pond.now_ms).failed
        pond.disk.heal()
        job = store.begin_checkpoint()
        store.reopen(pond.tp, pond.limits, pond.now_ms)
        if pond.tp in store.logs and store.logs[pond.tp].start_offset == 28:
            continue
        # Another one is being written: not now.
        assert "another checkpoint" in store.failed[pond.tp]
        job.run()
        store.end_checkpoint(job)
        store.reopen(pond.tp, pond.limits, pond.now_ms)
        _check_it_grows(pond, store)
        return
    pytest.fail("the end was never lost")


@pytest.mark.parametrize("where", ["in a record", "in a length", "where an index begins"])
def test_damage_among_deleted_records_does_not_take_what_follows_them(make_pond, where):
    pond = make_pond(limits=LogLimits(segment_bytes=1_000_000, index_interval_bytes=150))
    store, log = pond.open()
    for number in range(40):
        pond.now_ms += 1
        pond.append(log, b"value-%d" % number)
    if where == "where an index begins":
        store.close()
        pond.disk.drop_process()
        store, log = pond.open()
    pond.sync(log)
    pond.delete_before(log, 40)
    pond.fill(log, 60, 40)
    pond.sync(log)
    store.abandon()
    pond.disk.drop_process()
    position, bit = (237, 6) if where == "in a length" else (300, 0)
    pond.disk.flip_bit(f"{pond.partition}/{0:020}.log", position, bit)
    before = pond.disk.contents()
    store = pond.store()
    failed = store.open(pond.now_ms).failed
    if failed:
        assert "known to be safe" in failed[pond.tp]
        path = f"{pond.partition}/{0:020}.log"
        assert pond.disk.contents()[path] == before[path]
    else:
        assert len(pond.records(store.logs[pond.tp])) == 60


def test_a_failed_sync_is_marked_though_the_log_had_failed_for_want_of_room_before(pond, sim, monkeypatch):
    store, log = pond.open()
    pond.fill(log, 10)
    ticket = log.sync_target()

    def truncate(file, size):
        raise OSError(errno.ENOSPC, "no room to shorten")

    sim.fill()
    with monkeypatch.context() as patched:
        patched.setattr(SimFile, "truncate", truncate)
        with pytest.raises(Refused):
            pond.append(log, b"x")
    assert log.failed is not None
    assert FAILED_SYNC_FILE not in sim.list(pond.partition)
    sim.fail_syncs(".log")
    sim.fail_opens(FAILED_SYNC_FILE, code=errno.ENOSPC)
    with pytest.raises(OSError, match="Input/output") as raised:
        ticket.run()
    log.fail(raised.value, ticket)
    sim.heal()
    store.checkpoint()
    assert FAILED_SYNC_FILE in sim.list(pond.partition)


@pytest.mark.parametrize("which", [".log", "pond-0"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_cut_whose_sync_finds_no_room_leaves_a_mark(pond, sim, which, code):
    """One that could not even begin, for want of a descriptor, has lost nothing."""
    store, log = pond.open()
    pond.fill(log, 20)
    sim.fail_syncs(which, code=code)
    sim.fail_opens(FAILED_SYNC_FILE, times=1, code=code)
    truncation = log.begin_truncation(5)
    with pytest.raises(OSError, match=r"No space|Too many") as raised:
        truncation.run()
    log.finish_truncation(truncation, raised.value)
    sim.heal()
    store.checkpoint()
    assert (FAILED_SYNC_FILE in sim.list(pond.partition)) == (code == errno.ENOSPC)
