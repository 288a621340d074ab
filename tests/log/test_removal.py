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


def retired_twice(pond, log) -> list[RemovalJob]:
    """Two jobs, each of some of the oldest segments."""
    pond.fill(log, 40)
    pond.sync(log)
    jobs = [log.retire(log.segments[:2]) for _ in range(2)]
    assert all(job.begin() for job in jobs)
    return jobs


def bases(disk, folder) -> list[str]:
    return sorted(name for name in disk.list(folder) if name.endswith(".log"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1,), (0,), ()])
def test_whatever_overtakes_a_crash_finds_a_log_without_its_beginning_not_without_its_middle(make_pond, order):
    for cut in itertools.count(1):
        pond = make_pond(disk=SimDisk(cut))
        _, log = pond.open()
        jobs = retired_twice(pond, log)
        before = bases(pond.disk, pond.partition)
        pond.disk.crash_at_operation(pond.disk.operations + cut)
        is_cut = False
        try:
            for number in order:
                jobs[number].run()
                jobs[number].end(is_done=True)
        except PowerCut:
            is_cut = True
        pond.disk.crash()
        after = bases(pond.disk, pond.partition)
        assert after == before[-len(after) :]
        store, log = pond.open()
        kept = pond.values(log)
        assert list(kept) == list(range(log.start_offset, 40))
        store.close()
        if not is_cut:
            return


def test_what_a_job_could_not_remove_goes_before_what_comes_later(pond, sim, monkeypatch):
    _, log = pond.open()
    first, second = retired_twice(pond, log)
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
    assert bases(sim, pond.partition) == [path.rsplit("/", 1)[1] for path in _logs_of(log)]
    assert log.durability.away.retired is None, "and is not tried again"


def _logs_of(log) -> list[str]:
    return [segment.path(".log") for segment in log.segments]


def test_a_log_that_begins_anew_has_nothing_left_to_remove(pond):
    _, log = pond.open()
    first, second = retired_twice(pond, log)
    for job in (first, second):
        job.end(is_done=False)
    pond.cut(log, 3, is_new_start=True)
    assert log.durability.away.retired is None, "the names may be those of its new segments"
    late = log.retire([])
    assert late.begin()
    assert not late.paths


def test_a_new_beginning_that_is_given_up_forgets_nothing(pond, sim):
    """The checkpoint before it could not be written, and the log goes on as it was."""
    _, log = pond.open()
    pond.fill(log, 80)
    pond.sync(log)
    waiting = log.retire(log.segments[:2])
    log.give_up_truncation(log.begin_truncation(200, is_new_start=True))
    assert not waiting.begin()
    pond.remove(log.retire(log.segments[:3]))
    assert bases(sim, pond.partition) == [path.rsplit("/", 1)[1] for path in _logs_of(log)]


def test_a_job_of_before_a_new_beginning_says_nothing_about_what_is_retired_after_it(pond):
    _, log = pond.open()
    pond.fill(log, 40)
    pond.sync(log)
    early = log.retire(log.segments[:2])
    assert early.begin()
    pond.cut(log, 0, is_new_start=True)
    pond.fill(log, 40)
    later = log.retire(log.segments[:2])
    early.end(is_done=True)
    assert later.begin()
    assert len(later.paths) > 2


def test_an_index_that_cannot_be_removed_keeps_no_log_from_it(pond, sim, monkeypatch):
    """Or a partition would keep all of its segments for one file."""
    _, log = pond.open()
    first, second = retired_twice(pond, log)
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
    assert bases(sim, pond.partition) == [path.rsplit("/", 1)[1] for path in _logs_of(log)]


def test_each_job_looks_only_for_what_is_left(pond, sim):
    _, log = pond.open()
    pond.fill(log, 120)
    pond.sync(log)
    jobs = [log.retire(log.segments[:1]) for _ in range(6)]
    mark = len(sim.trace)
    for job in jobs:
        pond.remove(job)
    syncs = [line for line in list(sim.trace)[mark:] if " sync_folder " in line]
    assert len(syncs) == 2 * len(jobs)


def test_a_sync_does_not_miss_what_was_retired_meanwhile(pond, sim):
    """After a crash full segments are synced by their names, and one may go before its turn comes."""
    store, log = pond.open()
    pond.fill(log, 40)
    store.abandon()
    sim.drop_process()
    _, log = pond.open()
    for segment in log.segments[:-1]:
        segment.close()
    ticket = log.sync_target()
    assert log.segments[0] in ticket.closed
    pond.remove(log.retire(log.segments[:2]))
    assert run_tickets(sim, pond.folder, [ticket]) == [None]
    log.synced(ticket)
    sim.remove(log.segments[0].path(".log"))
    log.durability.owe_segment(log.segments[0])
    assert run_tickets(sim, pond.folder, [log.sync_target()]) != [None], "one that should be there is missed"


def test_a_deleted_folder_has_its_new_name_for_good_before_anything_in_it_goes(make_pond):
    """Or a power cut leaves the old name with nothing in it, which looks as if records were lost."""
    names = [TopicPartition("pond", number) for number in range(3)]
    for cut in itertools.count(1):
        pond = make_pond(disk=SimDisk(cut))
        store, _ = pond.open()
        for tp in names:
            log = store.create(tp, UUID(int=7))
            pond.fill(log, 2)
            pond.sync(log)
        store.checkpoint()
        jobs = [store.delete(tp) for tp in names]
        mark = len(pond.disk.trace)
        pond.disk.crash_at_operation(pond.disk.operations + cut)
        is_cut = False
        try:
            for job in jobs:
                job.run()
        except PowerCut:
            is_cut = True
        else:
            syncs = [line for line in list(pond.disk.trace)[mark:] if " sync_folder " in line]
            assert len(syncs) == 1, "once for all that were renamed before"
        pond.disk.crash()
        store = pond.store()
        report = store.open(pond.now_ms)
        assert not report.failed
        for log in store.logs.values():
            assert pond.values(log) == {0: b"value-0", 1: b"value-1"}, "all of it, or nothing"
        if not is_cut:
            return


@pytest.mark.parametrize("seed", seeds(range(30)))
def test_what_a_kill_left_of_deleted_folders_has_its_name_for_good_before_it_goes(make_pond, seed):
    for cut in itertools.count(1):
        pond = make_pond(disk=SimDisk(f"{seed}, {cut}"))
        store, log = pond.open()
        pond.fill(log, 2)
        pond.sync(log)
        store.checkpoint()
        store.delete(pond.tp)
        pond.disk.drop_process()
        pond.disk.crash_at_operation(pond.disk.operations + cut)
        is_cut = False
        try:
            pond.store().open(pond.now_ms)
        except PowerCut:
            is_cut = True
        pond.disk.crash()
        assert not pond.store().open(pond.now_ms).failed
        if not is_cut:
            return


@pytest.mark.parametrize("seed", seeds(range(10)))
def test_what_is_retired_before_it_was_synced_tears_nothing_that_is_safe(make_pond, seed):
    """Its files wait to be removed: torn by a power cut, they would be taken for the end of the log."""
    pond = make_pond(disk=SimDisk(seed))
    _, log = pond.open()
    pond.fill(log, 40)
    log.retire(log.segments[:2])
    pond.sync(log)
    pond.disk.crash()
    _, log = pond.open()
    assert log.end_offset == 40
    assert list(pond.values(log))[-1] == 39


def test_only_the_last_job_is_tried_again(pond):
    """It takes along what those before it have left; all of them, each for itself, would be more with every round."""
    _, log = pond.open()
    first, second = retired_twice(pond, log)
    assert (first.is_tried_again, second.is_tried_again) == (False, True)
    assert not RemovalJob(pond.disk, pond.partition, ("x.cleaned",)).is_tried_again


def test_a_topic_may_be_called_as_a_log(make_pond, monkeypatch):
    pond = make_pond(tp=TopicPartition("app.logs", 0))
    _, log = pond.open()
    first, _ = retired_twice(pond, log)
    remove = pond.disk.remove

    def refuse(path):
        if path.endswith(".index"):
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(pond.disk, "remove", refuse)
    with pytest.raises(PermissionError):
        first.run()
    assert len(bases(pond.disk, pond.partition)) == len(log.segments) + 2


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("begins_anew", [True, False])
def test_what_the_last_life_did_not_come_to_remove_goes_in_this_one(pond, sim, is_clean, begins_anew):
    store, log = pond.open()
    pond.fill(log, 40)
    pond.sync(log)
    pond.delete_before(log, 38)
    log.retire(log.expired_segments(pond.now_ms))
    store.close() if is_clean else store.abandon()
    sim.drop_process()
    _, log = pond.open()
    assert log.owes_removal
    assert any(name.endswith(".deleted") for name in sim.list(pond.partition))
    if begins_anew:
        pond.cut(log, 50, is_new_start=True)
    else:
        pond.remove(log.retire(()))
    assert not log.owes_removal
    assert not any(name.endswith(".deleted") for name in sim.list(pond.partition))


def test_what_a_compaction_has_replaced_is_removed_again_and_what_it_gave_up_is_not(make_pond):
    pond = make_pond(limits=LogLimits(cleanup_compact=True, min_cleanable_dirty_ratio=0.01))
    _, log = pond.open()
    for is_finished in (True, False):
        for _ in range(4):
            pond.fill(log, 2)
            log.roll()
        pond.sync(log)
        plan = log.compaction_candidate(pond.now_ms)
        plan.run()
        job = log.finish_compaction(plan) if is_finished else log.give_up_compaction(plan)
        assert job.paths
        assert job.is_tried_again == is_finished


def test_no_removal_is_asked_for_while_the_log_begins_anew(make_pond):
    """It would know the files of the new log by the names of the old ones."""
    pond = make_pond()
    store, log = pond.open()
    pond.fill(log, 60)
    pond.sync(log)
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
    pond.fill(log, 5)
    assert len(pond.records(log)) == 5
