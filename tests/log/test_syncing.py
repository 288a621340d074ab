from __future__ import annotations

from millpond.log.syncing import Debts, FolderRemovalJob, RemovalJob
from millpond.sim.world.disk import SimDisk


def test_files_are_synced_before_their_names_and_only_what_is_owed(pond, sim):
    _, log = pond.open()
    pond.fill(log, 1)
    mark = len(sim.trace)
    pond.sync(log)
    kinds = [line.split()[1:3] for line in list(sim.trace)[mark:]]
    synced = [kind for kind in kinds if kind[0].startswith("sync")]
    assert synced[:3] == [
        ["sync", f"{pond.partition}/{0:020d}.log"],
        ["sync_folder", "/data"],
        ["sync_folder", "/data/pond-0"],
    ]
    pond.fill(log, 1)
    mark = len(sim.trace)
    pond.sync(log)
    assert [line.split()[1] for line in list(sim.trace)[mark:]] == ["sync"], "the usual case is one sync"


def test_a_rolled_segment_is_synced_with_its_indexes(pond, sim):
    _, log = pond.open()
    pond.sync(log)
    pond.fill(log, 20)
    mark = len(sim.trace)
    pond.sync(log)
    paths = [line.split()[2] for line in list(sim.trace)[mark:] if line.split()[1] == "sync"]
    for suffix in (".log", ".index", ".timeindex"):
        assert f"{pond.partition}/{0:020d}{suffix}" in paths


def test_debts_are_handed_over_and_paid():
    debts = Debts(sealed_bases=[1], folders={"/a"}, epochs=True)
    handed = debts.hand_over()
    assert (handed.sealed_bases, handed.folders, handed.epochs) == ([1], {"/a"}, True)
    assert (debts.folders, debts.epochs) == (set(), False)
    debts.sealed_bases.append(5)
    debts.settle(handed)
    assert debts.sealed_bases == [5]
    debts.forget(5)
    assert debts.sealed_bases == []


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
    FolderRemovalJob(disk, "/p").run()
    assert not disk.exists("/p")
    FolderRemovalJob(disk, "/p").run()
    RemovalJob(disk, "/p", ("/p/1.log",)).run()


def test_a_last_ticket_that_cannot_be_made_lets_go_of_everything(pond, sim, monkeypatch):
    _, log = pond.open()
    pond.fill(log, 5)
    monkeypatch.setattr(type(log.snapshots), "write", lambda *_: (_ for _ in ()).throw(OSError("full")))
    assert log.begin_close() is None
    assert log.failed is not None
    assert not log.away
    log.abandon()
    assert sim.open_files == 0


def test_a_ticket_is_away_until_it_is_back(pond):
    _, log = pond.open()
    tickets = [log.sync_target(), log.sync_target()]
    assert log.away.syncs == 2
    for _ in range(2):
        tickets[0].release()
    assert log.away.syncs == 1, "a second release does no harm"
    log.synced(tickets[1])
    assert not log.away
