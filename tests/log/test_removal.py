"""Files go in their order, whatever overtakes, fails or is cut off."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from millpond.base.ids import TopicPartition
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
    assert not log.retire([]).paths, "and is not tried again"


def _logs_of(log) -> list[str]:
    return [segment.path(".log") for segment in log.segments]


def test_a_log_that_begins_anew_has_nothing_left_to_remove(pond):
    _, log = pond.open()
    first, second = retired_twice(pond, log)
    for job in (first, second):
        job.end(is_done=False)
    pond.cut(log, 3, is_new_start=True)
    assert not log.retire([]).paths, "the names may be those of its new segments"


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
