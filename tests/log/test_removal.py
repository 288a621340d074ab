from __future__ import annotations

from millpond.log.removal import FolderRemovalJob, RemovalJob
from millpond.sim.world.disk import SimDisk


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
