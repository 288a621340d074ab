"""Files go in their order, whatever overtakes, fails or is cut off."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
from millpond.log.durability import run_tickets
from millpond.log.limits import LogLimits
from millpond.log.removal import FolderRemovalJob, RemovalJob, Renames
from millpond.sim.world.disk import PowerCut, SimDisk
from support.seeds import seeds


def test_a_removal_syncs_after_each_log_and_forgives_what_is_gone():
    disk = SimDisk()
    disk.make_folder("/p")
    for name in ("1.index", "1.log", "2.log"):
        disk.replace(f"/p/{name}", b"x")
    mark = len(disk.trace)
    RemovalJob(disk, "/p", ("/p/1.index", "/p/1.timeindex", "/p/1.log", "/p/2.log")).run()
    assert [line.split(" ", 1)[1] for line in list(disk.trace)[mark:]] == [
        "sync_folder /p",
        "remove /p/1.index",
        "remove /p/1.log",
        "sync_folder /p",
        "remove /p/2.log",
        "sync_folder /p",
    ]
    job = FolderRemovalJob(disk, "/p", Renames("/"), 1)
    job.run()
    assert not disk.exists("/p")
    job.run()
    RemovalJob(disk, "/p", ("/p/1.log",)).run()


def retired_twice(harness, log) -> list[RemovalJob]:
    """Two jobs, each of some of the oldest segments."""
    harness.fill(log, 40)
    harness.sync(log)
    jobs = [log.retire(log.segments[:2]) for _ in range(2)]
    assert all(job.begin() for job in jobs)
    return jobs


def bases(disk, folder) -> list[str]:
    return sorted(name for name in disk.list(folder) if name.endswith(".log"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1,), (0,), ()])
def test_whatever_overtakes_a_crash_finds_a_log_without_its_beginning_not_without_its_middle(make_pond, order):
    for cut in itertools.count(1):
        harness = make_pond(disk=SimDisk(cut))
        _, log = harness.open()
        jobs = retired_twice(harness, log)
        before = bases(harness.disk, harness.partition)
        harness.disk.crash_at_operation(harness.disk.operations + cut)
        is_cut = False
        try:
            for number in order:
                jobs[number].run()
                jobs[number].end(is_done=True)
        except PowerCut:
            is_cut = True
        harness.disk.crash()
        after = bases(harness.disk, harness.partition)
        assert after == before[-len(after) :]
        store, log = harness.open()
        kept = harness.values(log)
        assert list(kept) == list(range(log.start_offset, 40))
        store.close()
        if not is_cut:
            return


def test_what_a_job_could_not_remove_goes_before_what_comes_later(harness, sim, monkeypatch):
    _, log = harness.open()
    first, second = retired_twice(harness, log)
    with monkeypatch.context() as broken:
        broken.setattr(sim, "remove", lambda path: (_ for _ in ()).throw(PermissionError(path)))
        with pytest.raises(PermissionError):
            first.run()
    first.end(is_done=False)
    mark = len(sim.trace)
    second.run()
    second.end(is_done=True)
    gone = [line.split()[2] for line in list(sim.trace)[mark:] if line.split()[1] == "remove"]
    assert [path for path in gone if path.endswith(".log")] == [
        path for path in second.paths if path.endswith(".log")
    ]
    assert len(second.paths) > len(first.paths)
    assert bases(sim, harness.partition) == [path.rsplit("/", 1)[1] for path in _logs_of(log)]
    assert log.durability.away.retired is None, "and is not tried again"


def _logs_of(log) -> list[str]:
    return [segment.path(".log") for segment in log.segments]


def test_a_restarted_log_has_nothing_left_to_remove(harness):
    _, log = harness.open()
    first, second = retired_twice(harness, log)
    for job in (first, second):
        job.end(is_done=False)
    harness.cut(log, 3, is_new_start=True)
    assert log.durability.away.retired is None, "the names may be those of its new segments"
    late = log.retire([])
    assert late.begin()
    assert not late.paths


def test_a_new_beginning_that_is_given_up_forgets_nothing(harness, sim):
    """The checkpoint before it could not be written, and the log goes on as it was."""
    _, log = harness.open()
    harness.fill(log, 80)
    harness.sync(log)
    waiting = log.retire(log.segments[:2])
    log.give_up_truncation(log.begin_truncation(200, is_new_start=True))
    assert not waiting.begin()
    harness.remove(log.retire(log.segments[:3]))
    assert bases(sim, harness.partition) == [path.rsplit("/", 1)[1] for path in _logs_of(log)]


def test_a_job_of_before_a_new_beginning_says_nothing_about_what_is_retired_after_it(harness):
    _, log = harness.open()
    harness.fill(log, 40)
    harness.sync(log)
    early = log.retire(log.segments[:2])
    assert early.begin()
    harness.cut(log, 0, is_new_start=True)
    harness.fill(log, 40)
    later = log.retire(log.segments[:2])
    early.end(is_done=True)
    assert later.begin()
    assert len(later.paths) > 2


def test_an_index_that_cannot_be_removed_keeps_no_log_from_it(harness, sim, monkeypatch):
    """Or a partition would keep all of its segments for one file."""
    _, log = harness.open()
    first, second = retired_twice(harness, log)
    stuck = next(path for path in second.paths if not path.endswith(".log"))
    remove = sim.remove

    def refuse(path):
        if path == stuck:
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(sim, "remove", refuse)
    for job in (first, second):
        with pytest.raises(PermissionError):
            job.run()
        job.end(is_done=False)
    assert bases(sim, harness.partition) == [path.rsplit("/", 1)[1] for path in _logs_of(log)]


def test_each_job_looks_only_for_what_is_left(harness, sim):
    _, log = harness.open()
    harness.fill(log, 120)
    harness.sync(log)
    jobs = [log.retire(log.segments[:1]) for _ in range(6)]
    mark = len(sim.trace)
    for job in jobs:
        harness.remove(job)
    syncs = [line for line in list(sim.trace)[mark:] if " sync_folder " in line]
    assert len(syncs) == 2 * len(jobs)


def test_a_sync_does_not_miss_what_was_retired_meanwhile(harness, sim):
    """After a crash full segments are synced by their names, and one may go before its turn comes."""
    store, log = harness.open()
    harness.fill(log, 40)
    store.abandon()
    sim.drop_process()
    _, log = harness.open()
    for segment in log.segments[:-1]:
        segment.close()
    ticket = log.sync_target()
    assert log.segments[0] in ticket.closed
    harness.remove(log.retire(log.segments[:2]))
    assert run_tickets(sim, harness.folder, [ticket]) == [None]
    log.synced(ticket)
    sim.remove(log.segments[0].path(".log"))
    log.durability.owe_segment(log.segments[0])
    assert run_tickets(sim, harness.folder, [log.sync_target()]) != [None], "one that should be there is missed"


def test_a_deleted_folder_has_its_new_name_for_good_before_anything_in_it_goes(make_pond):
    """Or a power cut leaves the old name with nothing in it, which looks as if records were lost."""
    names = [TopicPartition("pond", number) for number in range(3)]
    for cut in itertools.count(1):
        harness = make_pond(disk=SimDisk(cut))
        store, _ = harness.open()
        for tp in names:
            log = store.create(tp, UUID(int=7))
            harness.fill(log, 2)
            harness.sync(log)
        store.checkpoint()
        jobs = [store.delete(tp) for tp in names]
        mark = len(harness.disk.trace)
        harness.disk.crash_at_operation(harness.disk.operations + cut)
        is_cut = False
        try:
            for job in jobs:
                job.run()
        except PowerCut:
            is_cut = True
        else:
            syncs = [line for line in list(harness.disk.trace)[mark:] if " sync_folder " in line]
            assert len(syncs) == 1, "once for all that were renamed before"
        harness.disk.crash()
        store = harness.store()
        report = store.open(harness.now_ms)
        assert not report.failed
        for log in store.logs.values():
            assert harness.values(log) == {0: b"value-0", 1: b"value-1"}, "all of it, or nothing"
        if not is_cut:
            return


@pytest.mark.parametrize("seed", seeds(range(30)))
def test_what_a_kill_left_of_deleted_folders_has_its_name_for_good_before_it_goes(make_pond, seed):
    for cut in itertools.count(1):
        harness = make_pond(disk=SimDisk(f"{seed}, {cut}"))
        store, log = harness.open()
        harness.fill(log, 2)
        harness.sync(log)
        store.checkpoint()
        store.delete(harness.tp)
        harness.disk.drop_process()
        harness.disk.crash_at_operation(harness.disk.operations + cut)
        is_cut = False
        try:
            harness.store().open(harness.now_ms)
        except PowerCut:
            is_cut = True
        harness.disk.crash()
        assert not harness.store().open(harness.now_ms).failed
        if not is_cut:
            return


@pytest.mark.parametrize("seed", seeds(range(10)))
def test_what_is_retired_before_it_was_synced_tears_nothing_that_is_safe(make_pond, seed):
    """Its files wait to be removed: torn by a power cut, they would be taken for the end of the log."""
    harness = make_pond(disk=SimDisk(seed))
    _, log = harness.open()
    harness.fill(log, 40)
    log.retire(log.segments[:2])
    harness.sync(log)
    harness.disk.crash()
    _, log = harness.open()
    assert log.end_offset == 40
    assert list(harness.values(log))[-1] == 39


def test_only_the_last_job_is_tried_again(harness):
    """It takes along what those before it have left; all of them, each for itself, would be more with every round."""
    _, log = harness.open()
    first, second = retired_twice(harness, log)
    assert (first.is_tried_again, second.is_tried_again) == (False, True)
    assert not RemovalJob(harness.disk, harness.partition, ("x.cleaned",)).is_tried_again


def test_a_topic_may_be_called_as_a_log(make_pond, monkeypatch):
    harness = make_pond(tp=TopicPartition("app.logs", 0))
    _, log = harness.open()
    first, _ = retired_twice(harness, log)
    remove = harness.disk.remove

    def refuse(path):
        if path.endswith(".index"):
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(harness.disk, "remove", refuse)
    with pytest.raises(PermissionError):
        first.run()
    assert len(bases(harness.disk, harness.partition)) == len(log.segments) + 2


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("begins_anew", [True, False])
def test_files_left_by_the_previous_run_are_removed(harness, sim, is_clean, begins_anew):
    store, log = harness.open()
    harness.fill(log, 40)
    harness.sync(log)
    harness.delete_before(log, 38)
    log.retire(log.expired_segments(harness.now_ms))
    store.close() if is_clean else store.abandon()
    sim.drop_process()
    _, log = harness.open()
    assert log.owes_removal
    assert any(name.endswith(".deleted") for name in sim.list(harness.partition))
    if begins_anew:
        harness.cut(log, 50, is_new_start=True)
    else:
        harness.remove(log.retire(()))
    assert not log.owes_removal
    assert not any(name.endswith(".deleted") for name in sim.list(harness.partition))


def test_what_a_compaction_has_replaced_is_removed_again_and_what_it_gave_up_is_not(make_pond):
    harness = make_pond(limits=LogLimits(cleanup_compact=True, min_cleanable_dirty_ratio=0.01))
    _, log = harness.open()
    for is_finished in (True, False):
        for _ in range(4):
            harness.fill(log, 2)
            log.roll()
        harness.sync(log)
        plan = log.compaction_candidate(harness.now_ms)
        plan.run()
        job = log.finish_compaction(plan) if is_finished else log.give_up_compaction(plan)
        assert job.paths
        assert job.is_tried_again == is_finished


def test_no_removal_is_requested_while_the_log_restarts(make_pond):
    """It would know the files of the new log by the names of the old ones."""
    harness = make_pond()
    store, log = harness.open()
    harness.fill(log, 60)
    harness.sync(log)
    store.checkpoint()
    first = log.retire(log.segments[:3])
    assert not log.owes_removal, "there is a job for them"
    given_up = log.begin_truncation(0, is_new_start=True)
    assert not first.begin()
    assert not log.owes_removal
    log.give_up_truncation(given_up)
    assert log.owes_removal
    again = log.retire(())
    truncation = log.begin_truncation(0, is_new_start=True)
    store.checkpoint()
    assert not again.begin()
    truncation.run()
    log.finish_truncation(truncation)
    assert not log.owes_removal
    harness.fill(log, 5)
    assert len(harness.records(log)) == 5
