"""What a power cut may take from a simulated disk and what not, and the faults that can be ordered."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.sim.world.disk import PowerCut, SimDisk

SEEDS = range(200)


def written(disk: SimDisk, path: str, *, synced: bytes = b"", unsynced: bytes = b""):
    file = disk.open(path, create=True)
    file.append([synced])
    file.sync()
    disk.sync_folder("/")
    for start in range(0, len(unsynced), 10):
        file.append([unsynced[start : start + 10]])
    return file


def test_synced_bytes_always_survive_and_others_as_a_prefix() -> None:
    synced, unsynced = b"s" * 100, bytes(range(1, 101))
    seen: set[bytes] = set()
    for seed in SEEDS:
        disk = SimDisk(seed)
        written(disk, "/a", synced=synced, unsynced=unsynced)
        disk.crash()
        data = disk.read("/a")
        assert data[:100] == synced, f"seed {seed}"
        tail = data[100:].rstrip(b"\0")
        assert unsynced.startswith(tail), f"seed {seed}"
        assert len(data) <= 200, f"seed {seed}"
        seen.add(data[100:])
    lengths = {len(data) for data in seen}
    assert any(length % 10 for length in lengths), "tails are torn inside a write too"
    assert any(data.endswith(b"\0") for data in seen), "sometimes the size is ahead of the bytes"
    assert {0, 100} <= lengths, "sometimes nothing is lost, sometimes everything"


def test_what_survives_a_crash_is_durable_from_then_on() -> None:
    disk = SimDisk(3)
    written(disk, "/a", synced=b"s", unsynced=bytes(range(1, 200)))
    disk.crash()
    before = disk.contents()
    for _ in range(5):
        disk.crash()
        assert disk.contents() == before


@given(seed=st.integers(0, 10_000), synced_at=st.integers(0, 5))
def test_a_sync_covers_everything_before_it(seed: int, synced_at: int) -> None:
    disk = SimDisk(seed)
    file = disk.open("/a", create=True)
    disk.sync_folder("/")
    model = bytearray()
    for step in range(6):
        if step == 3:
            file.truncate(5)
            del model[5:]
        file.append([b"%d" % step * 4])
        model += b"%d" % step * 4
        if step == synced_at:
            file.sync()
            safe = bytes(model)
    disk.crash()
    after = disk.read("/a")
    # A truncation after the sync may have happened or not; either way no byte below it is touched.
    assert after[: min(len(safe), 5)] == safe[:5]
    if synced_at >= 3:
        assert after.startswith(safe)


def test_a_name_is_safe_only_after_its_folder_is_synced() -> None:
    result = []
    for seed in SEEDS:
        disk = SimDisk(seed)
        file = disk.open("/a", create=True)
        file.append([b"data"])
        file.sync()
        disk.crash()
        result.append(disk.exists("/a"))
    assert set(result) == {True, False}


def test_a_rename_happened_or_not_never_both_or_neither() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = SimDisk(seed)
        written(disk, "/old", synced=b"data")
        written(disk, "/other", synced=b"replaced")
        disk.rename("/old", "/new")
        disk.rename("/new", "/other")
        disk.crash()
        outcomes.add(tuple(sorted(disk.contents().items())))
    assert outcomes == {
        (("/old", b"data"), ("/other", b"replaced")),
        (("/new", b"data"), ("/other", b"replaced")),
        (("/other", b"data"),),
    }


def test_a_synced_rename_and_removal_stay() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        written(disk, "/a", synced=b"a")
        written(disk, "/b", synced=b"b")
        disk.rename("/a", "/c")
        disk.remove("/b")
        disk.sync_folder("/")
        disk.crash()
        assert disk.contents() == {"/c": b"a"}, f"seed {seed}"


def test_a_removed_file_may_come_back_whole() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = SimDisk(seed)
        written(disk, "/a", synced=b"a")
        disk.remove("/a")
        disk.crash()
        outcomes.add(disk.read("/a") if disk.exists("/a") else None)
    assert outcomes == {b"a", None}


def test_moving_between_folders_is_one_change() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        for folder in ("/from", "/to"):
            disk.make_folder(folder)
        written(disk, "/from/a", synced=b"a")
        disk.sync_folder("/from")
        disk.rename("/from/a", "/to/a")
        if seed % 2:
            disk.sync_folder("/to")
        disk.crash()
        assert len(disk.contents()) == 1, f"seed {seed}"
        assert not seed % 2 or disk.contents() == {"/to/a": b"a"}


def test_a_sync_carries_what_its_changes_stand_on() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        for folder in ("/from", "/to"):
            disk.make_folder(folder)
        disk.sync_folder("/")
        disk.open("/from/a", create=True).close()
        disk.rename("/from/a", "/to/a")
        disk.sync_folder("/to")
        disk.crash()
        assert disk.contents() == {"/to/a": b""}, f"seed {seed}"


def test_a_folder_whose_name_is_not_synced_may_vanish_with_all_in_it() -> None:
    kept = set()
    for seed in SEEDS:
        disk = SimDisk(seed)
        disk.make_folder("/f")
        file = disk.open("/f/a", create=True)
        file.sync()
        disk.sync_folder("/f")
        disk.crash()
        kept.add((disk.exists("/f"), disk.exists("/f/a")))
    assert kept == {(True, True), (False, False)}


def test_replace_gives_old_or_new_at_every_power_cut() -> None:
    seen = set()
    for operation in range(1, 8):
        for seed in range(40):
            disk = SimDisk(seed)
            disk.replace("/a", b"old content")
            start = disk.operations
            disk.crash_at_operation(start + operation)
            done = False
            try:
                disk.replace("/a", b"new")
                done = True
            except PowerCut:
                pass
            disk.crash()
            data = disk.read("/a")
            assert data == b"new" if done else data in (b"old content", b"new"), f"{operation=} {seed=}"
            seen.add((done, data))
    assert seen == {(True, b"new"), (False, b"old content"), (False, b"new")}


def test_a_crash_takes_open_files_and_locks() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"abc")
    lock = disk.lock("/lock")
    disk.crash()
    for attempt in (lambda: file.read_at(0, 1), lambda: file.append([b"x"]), file.sync):
        with pytest.raises(OSError):
            attempt()
    file.close()
    again = disk.lock("/lock")
    lock.release()
    with pytest.raises(BlockingIOError):
        disk.lock("/lock")
    again.release()
    assert disk.open_files == 0


def test_after_a_power_cut_nothing_works_until_the_crash_is_over() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"abc")
    disk.crash_at_operation(disk.operations + 2)
    file.append([b"d"])
    with pytest.raises(PowerCut):
        file.sync()
    for attempt in (lambda: file.append([b"x"]), lambda: disk.open("/a"), lambda: disk.remove("/a")):
        with pytest.raises(PowerCut):
            attempt()
    disk.crash()
    assert disk.read("/a")[:3] == b"abc"


def test_killing_the_process_keeps_every_byte() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"abc", unsynced=b"def")
    disk.lock("/lock")
    disk.drop_process()
    assert disk.read("/a") == b"abcdef"
    with pytest.raises(OSError):
        file.read_at(0, 1)
    disk.lock("/lock")


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"safe")
    file.append([b"lost"])
    disk.fail_syncs("/a")
    with pytest.raises(OSError) as raised:
        file.sync()
    assert raised.value.errno == errno.EIO
    file.append([b"after"])
    file.sync()
    assert file.read_at(0, 100) == b"safelostafter"
    disk.crash()
    assert disk.read("/a") == b"safe\0\0\0\0after"


def test_faults_of_syncs_and_reads_to_order() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"abc")
    other = written(disk, "/b", synced=b"abc")
    disk.fail_syncs("/a", times=None)
    for _ in range(3):
        with pytest.raises(OSError):
            file.sync()
    other.sync()
    disk.fail_reads("/b", times=2)
    for read in (lambda: other.read_at(0, 1), lambda: disk.read("/b")):
        with pytest.raises(OSError):
            read()
    assert other.read_at(0, 1) == b"a"
    disk.heal()
    file.sync()


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimDisk(1, capacity_bytes=25)
    file = written(disk, "/a", synced=b"0123456789")
    assert disk.free_bytes("/") == 15
    with pytest.raises(OSError) as raised:
        file.append([b"x" * 20])
    assert raised.value.errno == errno.ENOSPC
    assert file.size() == 25
    assert disk.free_bytes("/") == 0
    file.truncate(10)
    file.append([b"y" * 15])
    assert disk.read("/a") == b"0123456789" + b"y" * 15
    with pytest.raises(OSError):
        disk.replace("/b", b"z")
    assert disk.list("/") == ["a"]


def test_descriptors_run_out() -> None:
    disk = SimDisk(1)
    disk.open_files_max = 2
    first = disk.open("/a", create=True)
    second = disk.open("/b", create=True)
    with pytest.raises(OSError) as raised:
        disk.open("/c", create=True)
    assert raised.value.errno == errno.EMFILE
    first.retain()
    first.close()
    with pytest.raises(OSError):
        disk.open("/c", create=True)
    first.release()
    disk.open("/c", create=True).close()
    second.close()
    assert disk.open_files == 0


def test_a_rotten_bit_stays_rotten() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"\0\0")
    file.append([b"\0\0"])
    disk.flip_bit("/a", 1, bit=3)
    disk.flip_bit("/a", 2, bit=0)
    assert file.read_at(0, 4) == b"\0\x08\x01\0"
    file.sync()
    disk.crash()
    assert disk.read("/a") == b"\0\x08\x01\0"


def test_cold_reads_by_share() -> None:
    disk = SimDisk(1)
    file = written(disk, "/a", synced=b"abc")
    assert all(file.is_cached(0, 3) for _ in range(50))
    disk.cold_share = 0.5
    assert {file.is_cached(0, 3) for _ in range(50)} == {True, False}


def run_operations(seed: int) -> tuple[list[str], dict[str, bytes]]:
    disk = SimDisk(seed)
    disk.make_folder("/f/g")
    for number in range(20):
        file = disk.open(f"/f/{number}", create=True)
        file.append([b"%d" % number * 50])
        if number % 3 == 0:
            file.sync()
        if number % 5 == 0:
            disk.sync_folder("/f")
        if number == 10:
            disk.sync_folder("/")
    disk.crash()
    return list(disk.trace), disk.contents()


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_operations(7) == run_operations(7)
    assert len({str(run_operations(seed)[1]) for seed in range(10)}) > 5


def test_what_a_sync_of_everything_lost_each_file_tells_once() -> None:
    disk = SimDisk(1)
    lost = written(disk, "/a", synced=b"safe", unsynced=b"lost")
    whole = written(disk, "/b", synced=b"safe")
    disk.fail_syncs("/")
    with pytest.raises(OSError):
        disk.sync_everything("/")
    assert not disk.sync_everything("/"), "it promises nothing any more"
    whole.sync()
    with pytest.raises(OSError):
        lost.sync()
    lost.sync()
    disk.crash()
    assert disk.read("/a") == b"safe"
    assert disk.sync_everything("/")


def test_files_that_cannot_be_opened_heal() -> None:
    disk = SimDisk()
    disk.make_folder("/topic-0")
    disk.replace("/topic-0/0.log", b"x")
    disk.fail_opens("/topic-0/")
    for use in (disk.open, disk.read, lambda _: disk.list("/topic-0")):
        with pytest.raises(PermissionError):
            use("/topic-0/0.log")
    disk.heal()
    assert disk.open("/topic-0/0.log").size() == 1


def test_a_full_disk_heals() -> None:
    disk = SimDisk()
    file = disk.open("/a", create=True)
    disk.fill(3)
    with pytest.raises(OSError, match="No space"):
        file.append([b"12345"])
    assert disk.free_bytes("/") == 0
    disk.make_room()
    file.append([b"45"])
    assert disk.read("/a") == b"12345"


def test_rot_flips_one_bit_of_a_file_that_fits() -> None:
    for seed in range(20):
        disk = SimDisk(seed)
        disk.replace("/a.log", bytes(10))
        disk.replace("/a.index", bytes(10))
        assert disk.rot("nothing like it") is None
        assert disk.rot(".log") == "/a.log"
        assert sum(byte.bit_count() for byte in disk.read("/a.log")) == 1
        assert disk.read("/a.index") == bytes(10)


def test_a_file_that_takes_the_place_of_another_leaves_it_aside() -> None:
    disk = SimDisk()
    disk.make_folder("/d")
    for data in (b"first", b"second"):
        disk.put_in_place(disk.write_aside("/d/note", data), "/d/note")
        assert disk.read("/d/note") == data
    assert disk.read("/d/note.spare") == b"first"
