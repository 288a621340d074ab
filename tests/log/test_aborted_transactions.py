from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.log.aborted_transactions import FLUSH_ENTRIES, Aborted, AbortedIndex, between
from millpond.log.open_files import OpenFiles
from millpond.sim.world.disk import SimDisk

PATH = "/data/00000000000000000000.txnindex"


def entry(first, last, stable=None, producer=1):
    return Aborted(producer, first, last, last + 1 if stable is None else stable)


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_folder("/data")
    return disk


def started(disk, *entries):
    index = AbortedIndex(OpenFiles(disk), PATH)
    index.start()
    for each in entries:
        index.add(each)
    return index


def test_the_file_is_kafkas(disk):
    started(disk, Aborted(1, 2, 3, 4)).seal()
    assert disk.read(PATH).hex() == "0000" + "".join(f"{number:016x}" for number in (1, 2, 3, 4))


def test_without_an_abort_there_is_no_file(disk):
    started(disk).seal()
    assert not disk.exists(PATH)


def test_a_stale_file_is_emptied(disk):
    started(disk, entry(1, 2)).seal()
    started(disk).seal()
    assert disk.read(PATH) == b""
    assert AbortedIndex(OpenFiles(disk), PATH).entries() == []


def test_a_sealed_index_reads_itself_and_can_grow_again(disk):
    started(disk, entry(1, 2)).seal()
    again = AbortedIndex(OpenFiles(disk), PATH)
    assert again.entries() == [entry(1, 2)]
    again.load()
    again.add(entry(3, 4))
    again.seal()
    assert AbortedIndex(OpenFiles(disk), PATH).entries() == [entry(1, 2), entry(3, 4)]
    with pytest.raises(AssertionError, match="sealed"):
        again.add(entry(5, 6))


def test_loading_what_already_grows_keeps_what_is_not_in_the_file_yet(disk):
    index = started(disk, entry(1, 2))
    index.load()
    assert index.entries() == [entry(1, 2)]


def test_the_file_follows_in_blocks_and_closing_keeps_the_rest(disk):
    index = started(disk, *(entry(n, n) for n in range(FLUSH_ENTRIES + 1)))
    assert disk.size(PATH) == FLUSH_ENTRIES * 34
    index.close()
    assert len(index.entries()) == FLUSH_ENTRIES + 1
    index.flush()
    assert disk.size(PATH) == (FLUSH_ENTRIES + 1) * 34


def test_a_cut_forgets_later_markers(disk):
    index = started(disk, entry(0, 5), entry(1, 9), entry(7, 12))
    index.flush()
    index.cut(9)
    assert index.entries() == [entry(0, 5)]
    index.flush()
    assert AbortedIndex(OpenFiles(disk), PATH).entries() == [entry(0, 5)]


def test_entries_count_as_far_as_they_make_sense(disk):
    started(disk, entry(1, 2), entry(3, 9), entry(4, 5)).seal()
    assert AbortedIndex(OpenFiles(disk), PATH).entries() == [entry(1, 2), entry(3, 9)]
    file = disk.open(PATH)
    file.truncate(40)
    assert AbortedIndex(OpenFiles(disk), PATH).entries() == [entry(1, 2)]


def test_what_a_glance_finds(disk):
    index = AbortedIndex(OpenFiles(disk), PATH)
    assert index.is_plausible(0, 10), "no file, no abort"
    started(disk, entry(1, 2), entry(3, 9)).seal()
    assert index.is_plausible(0, 10)
    assert not index.is_plausible(3, 10)
    assert not index.is_plausible(0, 9)
    disk.open(PATH).truncate(67)
    assert not index.is_plausible(0, 10)


def test_a_full_disk_does_not_refuse_a_marker():
    disk = SimDisk(capacity_bytes=100)
    disk.make_folder("/data")
    index = started(disk, *(entry(n, n) for n in range(FLUSH_ENTRIES)))
    assert len(index.entries()) == FLUSH_ENTRIES


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_all_that_overlap_are_found(transactions, start, upper):
    """Transactions of their own producers, each open from its first offset to its marker, none else open."""
    disk = SimDisk()
    disk.make_folder("/data")
    ends = sorted({first + length + 1: first for first, length in transactions}.items())
    entries = []
    for number, (last, first) in enumerate(ends):
        still_open = [later_first for later_last, later_first in ends[number + 1 :] if later_first < last]
        entries.append(entry(first, last, min(still_open, default=last + 1), producer=number))
    half = len(entries) // 2
    one, two = started(disk, *entries[:half]), AbortedIndex(OpenFiles(disk), PATH + "2")
    two.start()
    for each in entries[half:]:
        two.add(each)
    expected = [each for each in entries if each.last_offset >= start and each.first_offset < upper]
    assert between([one, two], start, upper, len(entries)) == (expected, upper)


def test_a_file_that_was_shortened_is_a_fault_of_the_disk(disk):
    """Aborted records would be read as committed ones."""
    index = started(disk, *[entry(number, number) for number in range(200)])
    index.seal()
    assert len(list(index.from_offset(0))) == 200
    disk.open(PATH).truncate(34 * 150)
    for offset in (0, 190):
        with pytest.raises(OSError, match="shorter"):
            list(index.from_offset(offset))
