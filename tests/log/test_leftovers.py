from __future__ import annotations

from millpond.log.leftovers import has_leftovers, remove_swaps, settle, swap_names
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.wire.records import Record, encode_batch


def batch(offset, count=1):
    records = [Record(offset + n, 5, b"k", b"v") for n in range(count)]
    return encode_batch(records, base_offset=offset)


def folder(seed=0, **files):
    disk = SimDisk(seed)
    disk.make_folder("/p")
    disk.sync_folder("/")
    for name, data in files.items():
        number, _, suffix = name.lstrip("_").partition("_")
        disk.replace(f"/p/{int(number):020d}.{suffix.replace('_', '.')}", data)
    return disk


def live(disk):
    return {name.lstrip("0") or name: disk.read(f"/p/{name}") for name in disk.list("/p")}


def test_what_was_deleted_or_half_cleaned_goes():
    disk = folder(_0_log=b"old", _0_log_cleaned=b"half", _9_log_deleted=b"gone", _9_index_deleted=b"")
    assert has_leftovers(disk.list("/p"))
    assert settle(disk, "/p", disk.list("/p")) == set()
    assert live(disk) == {".log": b"old"}
    assert not has_leftovers(disk.list("/p"))


def test_a_swap_replaces_the_segments_that_it_covers_and_no_other():
    new = batch(0) + batch(19)
    disk = folder(
        _0_log=b"a",
        _10_log=b"b",
        _15_log=b"c",
        _15_index=b"i",
        _20_log=b"d",
        _0_log_swap=new,
        _0_index_swap=b"x",
        _0_index=b"y",
    )
    assert settle(disk, "/p", disk.list("/p")) == {0}
    assert live(disk) == {".log": new, "20.log": b"d"}


def test_an_index_that_waits_alone_is_made_again():
    disk = folder(_0_log=b"a", _0_index=b"old", _0_index_swap=b"new", _0_timeindex=b"t")
    assert settle(disk, "/p", disk.list("/p")) == {0}
    assert live(disk) == {".log": b"a"}


def test_a_stranger_that_looks_like_a_swap_is_no_reason_to_stop():
    disk = folder(_0_log=b"a")
    disk.replace("/p/notes.swap", b"?")
    assert settle(disk, "/p", disk.list("/p")) == set()


def test_the_index_of_ended_transactions_is_made_again_with_the_others():
    disk = folder(_0_log=b"a", _0_txnindex=b"old", _0_txnindex_swap=b"new")
    assert settle(disk, "/p", disk.list("/p")) == {0}
    assert live(disk) == {".log": b"a"}


def test_a_swap_whose_segments_are_gone_since_goes_too():
    """It was given up, and retention took what it was to replace."""
    disk = folder(_0_log_swap=batch(0), _0_index_swap=b"x", _20_log=b"d", _20_index=b"i")
    assert settle(disk, "/p", disk.list("/p")) == set()
    assert live(disk) == {"20.log": b"d", "20.index": b"i"}


def test_a_swap_whose_first_segment_waits_to_be_removed_is_finished():
    """Kafka takes the old one away before the new one has its name."""
    disk = folder(_0_log_deleted=b"a", _0_log_swap=batch(0), _20_log=b"d")
    assert settle(disk, "/p", disk.list("/p")) == {0}
    assert live(disk) == {".log": batch(0), "20.log": b"d"}


def test_swaps_that_are_given_up_go_from_the_last_to_the_first():
    """Each counts on what those before it have dropped: a recovery may find the first of them, never the last."""
    files = {f"_{base}_{suffix}_swap": b"x" for base in (0, 9, 20) for suffix in ("log", "index")}
    names = [name.lstrip("0") for name in swap_names(folder(**files).list("/p"))]
    assert names[:3] == ["20.log.swap", "9.log.swap", ".log.swap"]
    whole = folder(**files)
    before = whole.operations
    remove_swaps(whole, "/p")
    assert not live(whole)
    for seed, number in enumerate(list(range(before + 1, whole.operations + 1)) * 5):
        disk = folder(seed, **files)
        disk.crash_at_operation(number)
        try:
            remove_swaps(disk, "/p")
        except PowerCut:
            disk.crash()
        left = [name for name in live(disk) if name.endswith(".log.swap")]
        assert left == [".log.swap", "9.log.swap", "20.log.swap"][: len(left)]
