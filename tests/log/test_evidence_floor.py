"""A log remembers up to where it has dropped tombstones and markers, whatever happens to it."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from tests.log.test_compaction import COMPACT, bury, compact, put

from millpond.base.errors import Refused
from millpond.log.evidence_floor import floors
from millpond.sim.world.disk import PowerCut, SimDisk

TOMBSTONES = tuple(range(3, 36, 6))


def life(harness):
    """Writes keys, buries every third of them later on, compacts until the tombstones have gone."""
    _, log = harness.open()
    for number in range(36):
        if number in TOMBSTONES:
            bury(harness, log, b"k%d" % (number - 3))
        else:
            put(harness, log, b"k%d" % number, b"v%d" % number)
        if number % 9 == 8:
            harness.sync(log)
            compact(harness, log)
            harness.now_ms += 2000
    return log


def dropped(harness, log):
    """Tombstones that the log once had, and does not have any more."""
    there = {record.offset for record in harness.records(log)}
    return [offset for offset in TOMBSTONES if offset < log.end_offset and offset not in there]


def test_the_floor_is_above_the_highest_tombstone_that_is_gone(make_pond):
    harness = make_pond(limits=COMPACT)
    log = life(harness)
    assert dropped(harness, log)
    assert log.evidence_floor == max(dropped(harness, log)) + 1


def test_superseded_records_do_not_raise_the_floor(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    for number in range(40):
        put(harness, log, b"k%d" % (number % 2), b"v%d" % number)
    assert compact(harness, log)
    assert log.evidence_floor == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_power_cut_at_every_operation_leaves_a_floor_above_what_is_gone(make_pond, seed):
    whole = make_pond(limits=COMPACT)
    life(whole)
    for number in range(seed, whole.disk.operations + 1, 3):
        harness = make_pond(disk=SimDisk(seed * 1000 + number), limits=COMPACT)
        harness.disk.crash_at_operation(number)
        with pytest.raises(PowerCut):
            life(harness)
        harness.disk.crash()
        _, log = harness.open()
        assert log.evidence_floor > max(dropped(harness, log), default=-1), number


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_floor_survives_a_restart(make_pond, is_clean):
    harness = make_pond(limits=COMPACT)
    floor = life(harness).evidence_floor
    harness.opened.close() if is_clean else harness.opened.abandon()
    _, log = harness.open()
    assert log.evidence_floor == floor > 0
    assert floors(harness.disk.list(harness.partition)) == [floor]


def test_evidence_that_a_follower_has_yet_to_copy_stays(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    put(harness, log, b"a", b"1")
    bury(harness, log, b"a")
    put(harness, log, b"b", b"1" * 400)
    put(harness, log, b"c", b"1")
    for _ in range(3):
        log.compaction.clean_offset = log.start_offset
        plan = log.compaction_candidate(harness.now_ms, evidence_upto=1)
        plan.run()
        log.finish_compaction(plan).run()
        harness.now_ms += 2000
    assert [record.offset for record in harness.records(log)] == [1, 2, 3]
    assert log.evidence_floor == 0
    log.compaction.clean_offset = log.start_offset
    compact(harness, log)
    assert [record.offset for record in harness.records(log)] == [2, 3]
    assert log.evidence_floor == 2


def forget_floors(harness):
    """As an earlier version, or a backup, leaves a folder."""
    for floor in floors(harness.disk.list(harness.partition)):
        harness.disk.remove(f"{harness.partition}/{floor:020d}.floor")


def test_a_log_of_an_earlier_version_counts_as_having_dropped_all_evidence_that_is_compacted(make_pond):
    harness = make_pond(limits=COMPACT)
    log = life(harness)
    clean_offset, floor = log.compaction.clean_offset, log.evidence_floor
    harness.opened.close()
    forget_floors(harness)
    _, log = harness.open()
    assert log.evidence_floor == clean_offset >= floor
    # From then on it is recorded.
    harness.opened.close()
    assert floors(harness.disk.list(harness.partition)) == [clean_offset]


def test_a_restored_log_counts_as_having_dropped_all_evidence_up_to_its_last_hole(make_pond):
    """A backup has neither floors nor checkpoints, but a recovery sees every batch."""
    harness = make_pond(limits=COMPACT)
    floor = life(harness).evidence_floor
    harness.opened.close()
    forget_floors(harness)
    for name in harness.disk.list(harness.folder):
        if not harness.disk.exists(f"{harness.folder}/{name}/partition.metadata"):
            harness.disk.remove(f"{harness.folder}/{name}")
    for name in harness.disk.list(harness.partition):
        if not name.endswith((".log", ".metadata")):
            harness.disk.remove(f"{harness.partition}/{name}")
    _, log = harness.open()
    assert floor <= log.evidence_floor <= log.end_offset


def test_a_log_that_was_never_compacted_has_no_floor(make_pond):
    harness = make_pond(limits=replace(COMPACT, cleanup_compact=False))
    store, log = harness.open()
    harness.fill(log, 20)
    store.abandon()
    store, log = harness.open()
    assert log.evidence_floor == 0
    store.close()
    _, log = harness.open()
    assert log.evidence_floor == 0
    assert floors(harness.disk.list(harness.partition)) == []


def test_a_copy_keeps_the_floor_that_it_inherited(make_pond):
    leader, follower = make_pond(limits=COMPACT), make_pond(limits=COMPACT)
    source = life(leader)
    store, log = follower.open()
    data = memoryview(bytearray(source.read_batches(0, 1 << 20)))
    log.append_follower(data, now_ms=follower.now_ms, evidence_floor=source.evidence_floor)
    store.abandon()
    _, log = follower.open()
    assert log.evidence_floor == source.evidence_floor > 0


def test_a_copy_that_cannot_record_the_floor_takes_no_records(make_pond, monkeypatch):
    leader, follower = make_pond(limits=COMPACT), make_pond(limits=COMPACT)
    source = life(leader)
    _, log = follower.open()
    data = memoryview(bytearray(source.read_batches(0, 1 << 20)))
    real = follower.disk.open

    def no_room(path, **fields):
        if path.endswith(".floor"):
            raise OSError(errno.ENOSPC, "no room", path)
        return real(path, **fields)

    monkeypatch.setattr(follower.disk, "open", no_room)
    with pytest.raises(Refused):
        log.append_follower(data, now_ms=follower.now_ms, evidence_floor=source.evidence_floor)
    assert log.end_offset == 0
