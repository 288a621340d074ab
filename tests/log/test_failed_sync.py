"""After a failed sync the page cache is all there is: a restart must bring that to the disk before it trusts it."""

from __future__ import annotations

import errno

import pytest

from millpond.base.errors import Refused
from millpond.base.ids import TopicPartition
from millpond.log.durability import TOGETHER_FROM, run_tickets
from millpond.log.limits import LogLimits
from millpond.log.names import FAILED_SYNC_FILE
from millpond.sim.world.disk import PowerCut, SimDisk
from support.seeds import seeds

SAFE, COUNT = 15, 40


def fail_a_sync(harness, log) -> None:
    """The disk loses what was written since the last sync, and the log is closed for it."""
    ticket = log.sync_target()
    harness.disk.fail_syncs(".log")
    with pytest.raises(OSError) as failure:
        ticket.run()
    log.fail(failure.value, ticket)


def written_and_lost(make_pond, seed=0, *, is_heard=True):
    """Some records that are safe, some that only the page cache has, in several segments.

    If it `is_heard`, the log knows of it before its process is killed.
    """
    harness = make_pond(disk=SimDisk(seed), limits=LogLimits(segment_bytes=1000, index_interval_bytes=150))
    store, log = harness.open()
    harness.fill(log, SAFE)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, COUNT - SAFE, start=SAFE)
    if is_heard:
        fail_a_sync(harness, log)
    else:
        harness.disk.fail_syncs(".log")
        assert run_tickets(harness.disk, harness.folder, [log.sync_target()]) != [None]
    harness.disk.drop_process()
    return harness


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("seed", seeds(range(5)))
def test_what_a_restart_takes_for_good_survives_a_power_cut(make_pond, seed, is_heard):
    harness = written_and_lost(make_pond, seed, is_heard=is_heard)
    store, log = harness.open()
    assert log.end_offset == COUNT
    harness.sync(log)
    store.checkpoint()
    harness.disk.crash()
    _, log = harness.open()
    assert harness.values(log) == {n: b"value-%d" % n for n in range(COUNT)}


def test_the_power_may_go_at_every_operation_of_the_rewriting(make_pond):
    """Never less than what was safe, never damage; and who started well once has everything for good."""
    for operation in range(1, 200):
        harness = written_and_lost(make_pond, operation)
        harness.disk.crash_at_operation(harness.disk.operations + operation)
        try:
            _, log = harness.open()
            harness.sync(log)
            is_through = True
        except PowerCut:
            is_through = False
        harness.disk.crash()
        _, log = harness.open()
        found = harness.values(log)
        assert found == {n: b"value-%d" % n for n in range(len(found))}
        assert len(found) >= (COUNT if is_through else SAFE)
        if is_through:
            return
    pytest.fail("the power was never left on")


def test_segments_below_the_recovery_point_are_left_alone(make_pond):
    harness = written_and_lost(make_pond)
    mark = len(harness.disk.trace)
    harness.open()
    renamed = [line.split()[2] for line in list(harness.disk.trace)[mark:] if line.split()[1] == "rename"]
    assert renamed
    assert f"{harness.partition}/{0:020d}.log.tmp" not in renamed, "it ends below what is safe"
    assert not harness.disk.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")


def test_a_rewriting_that_fails_leaves_the_partition_offline_with_its_mark(make_pond):
    harness = written_and_lost(make_pond)
    harness.disk.fail_syncs(".log.tmp")
    store = harness.store()
    assert harness.tp in store.open(harness.now_ms).failed
    with pytest.raises(Refused):
        store.create(harness.tp, harness.topic_id)
    store.close()
    assert harness.disk.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")
    _, log = harness.open()
    assert log.end_offset == COUNT
    assert not harness.disk.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")


def test_the_mark_is_tried_again_with_each_checkpoint(harness, sim, monkeypatch):
    store, log = harness.open()
    harness.fill(log, 3)
    sim.open_files_max = sim.open_files
    with monkeypatch.context() as patch:
        patch.setattr(sim, "make_folder", lambda _: (_ for _ in ()).throw(OSError("full")))
        log.fail(OSError(errno.EIO, "broken"))
    assert not sim.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")
    sim.open_files_max = None
    store.checkpoint()
    assert sim.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")


def test_the_mark_can_be_left_without_a_free_descriptor(make_pond):
    harness = make_pond()
    _, log = harness.open()
    harness.fill(log, COUNT)
    ticket = log.sync_target()
    harness.disk.fail_syncs(".log")
    harness.disk.open_files_max = harness.disk.open_files
    with pytest.raises(OSError):
        ticket.run()
    log.fail(OSError(errno.EIO, "broken"), ticket)
    harness.disk.drop_process()
    harness.disk.open_files_max = None
    _, log = harness.open()
    harness.sync(log)
    harness.disk.crash()
    _, log = harness.open()
    assert log.end_offset == COUNT
    assert not harness.disk.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")


def test_a_folder_may_hold_nothing_but_the_mark(harness, sim):
    sim.make_folder(f"{harness.partition}/{FAILED_SYNC_FILE}")
    _, log = harness.open()
    assert log.end_offset == 0
    assert not sim.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")


def test_a_log_that_is_gone_leaves_no_mark(harness, sim):
    store, log = harness.open()
    ticket = log.sync_target()
    store.delete(harness.tp)
    with pytest.raises(FileNotFoundError):
        ticket.run()
    assert not sim.exists(harness.partition), "no folder either"
    log.fail(OSError(errno.ENOENT, "gone"), ticket)
    store.create(harness.tp, harness.topic_id)
    assert not sim.exists(f"{harness.partition}/{FAILED_SYNC_FILE}")


def test_a_failed_sync_of_everything_marks_each_folder_before_the_loop_learns_of_it(harness, sim):
    store, _ = harness.open()
    names = [TopicPartition("many", number) for number in range(TOGETHER_FROM)]
    logs = [store.create(name, harness.topic_id) for name in names]
    for log in logs:
        harness.fill(log, 1)
    sim.fail_syncs(harness.folder)
    errors = run_tickets(sim, harness.folder, [log.sync_target() for log in logs])
    assert None not in errors
    assert all(sim.exists(f"{log.folder}/{FAILED_SYNC_FILE}") for log in logs)


def test_a_rewriting_without_room_takes_none(make_pond):
    harness = make_pond()
    store, log = harness.open()
    harness.fill(log, 20)
    harness.sync(log)
    store.abandon()
    harness.disk.open(f"{harness.partition}/{FAILED_SYNC_FILE}", create=True).close()
    harness.disk.fill(300)
    assert harness.store().open(harness.now_ms).failed
    assert harness.disk.free_bytes("/") == 300


@pytest.mark.parametrize("seed", seeds(range(10)))
def test_whose_log_it_is_survives_the_failed_sync_of_that_file(make_pond, seed):
    """Found by a seed of the simulator: acknowledged records were set aside as a stranger's."""
    harness = make_pond(disk=SimDisk(seed))
    store, log = harness.open()
    harness.disk.fail_syncs("partition.metadata")
    harness.sync_or_fail(log)
    assert log.failed is not None
    store.abandon()
    harness.disk.drop_process()
    store, log = harness.open()
    harness.fill(log, 3)
    harness.sync(log)
    harness.disk.crash()
    store = harness.store()
    assert not store.open(harness.now_ms).failed
    assert store.get(harness.tp).topic_id == harness.topic_id
    assert len(harness.values(store.get(harness.tp))) == 3
