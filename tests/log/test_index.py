from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.log.index import FLUSH_ENTRIES, offset_index, time_index
from millpond.log.open_files import OpenFiles
from millpond.sim.world.disk import SimDisk

entries = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5000)), max_size=60).map(
    lambda steps: list(zip(accumulate(key for key, _ in steps), accumulate(value for _, value in steps), strict=True))
)


@settings(deadline=None)
@given(entries, st.lists(st.integers(-1, 3100), max_size=10), st.integers(1, 40))
def test_memory_and_file_answer_alike(pairs, asked, repeat):
    index = offset_index(OpenFiles(SimDisk()), "/i")
    index.start()
    pairs = [(key + n * 3100, value + n * 300_000) for n in range(repeat) for key, value in pairs]
    for key, value in pairs:
        index.add(key, value)
    keys = [key for key, _ in pairs]
    expected = [pairs[place - 1] if (place := bisect_right(keys, key)) else None for key in asked]
    assert [index.floor(key) for key in asked] == expected
    above = [next((pair for pair in pairs if pair[1] >= value), None) for value in asked]
    assert [index.ceiling_by_value(value) for value in asked] == above
    index.seal()
    assert [index.floor(key) for key in asked] == expected
    assert [index.ceiling_by_value(value) for value in asked] == above
    assert index.last() == (pairs[-1] if pairs else None)
    index.load()
    assert [index.floor(key) for key in asked] == expected


def test_the_bytes_are_kafkas_own():
    disk = SimDisk()
    offsets, times = offset_index(OpenFiles(disk), "/o"), time_index(OpenFiles(disk), "/t")
    for index in (offsets, times):
        index.start()
        index.add(5, 4096)
        index.seal()
    assert disk.read("/o") == bytes.fromhex("0000000500001000")
    assert disk.read("/t") == bytes.fromhex("000000000000000500001000")


def test_entries_reach_the_file_in_blocks_and_a_full_disk_only_delays_them():
    disk = SimDisk()
    index = offset_index(OpenFiles(disk), "/i")
    index.start()
    disk.capacity_bytes = 20
    for number in range(FLUSH_ENTRIES + 3):
        index.add(number, number)
    assert index.last() == (FLUSH_ENTRIES + 2, FLUSH_ENTRIES + 2)
    disk.capacity_bytes = 1 << 40
    index.seal()
    assert disk.size("/i") == 8 * (FLUSH_ENTRIES + 3)
    assert index.floor(FLUSH_ENTRIES) == (FLUSH_ENTRIES, FLUSH_ENTRIES)


def test_cutting_drops_what_is_too_far_in_either_way():
    disk = SimDisk()
    index = offset_index(OpenFiles(disk), "/i")
    index.start()
    for number in range(10):
        index.add(number, number * 100)
    index.flush()
    index.cut(7, 10_000)
    assert index.last() == (6, 600)
    index.cut(100, 400)
    assert index.last() == (3, 300)
    index.seal()
    assert disk.size("/i") == 4 * 8


def test_only_entries_that_rise_are_loaded():
    disk = SimDisk()
    disk.replace("/i", bytes.fromhex("00000001 00000010 00000002 00000020 00000002 00000030 0000"))
    index = offset_index(OpenFiles(disk), "/i")
    index.load()
    assert index.count == 2
    index.seal()
    assert disk.size("/i") == 16, "the file follows"


def test_a_cheap_look_finds_gross_damage():
    disk = SimDisk()
    index = offset_index(OpenFiles(disk), "/i")
    assert index.is_plausible(10, 10, may_be_empty=True)
    assert not index.is_plausible(10, 10, may_be_empty=False)
    disk.replace("/i", bytes.fromhex("00000005 00000009"))
    assert index.is_plausible(5, 9, may_be_empty=False)
    assert not index.is_plausible(4, 9, may_be_empty=False)
    assert not index.is_plausible(5, 8, may_be_empty=False)
    disk.replace("/i", b"123")
    assert not offset_index(OpenFiles(disk), "/i").is_plausible(5, 9, may_be_empty=True)


def test_a_file_that_was_shortened_is_a_fault_of_the_disk_and_counted_again():
    """It was an IndexError, which ends the process."""
    disk = SimDisk()
    index = offset_index(OpenFiles(disk), "/i")
    index.start()
    for number in range(2000):
        index.add(number, number * 10)
    index.seal()
    assert index.floor(1900) == (1900, 19_000)
    disk.open("/i").truncate(8 * 100 + 3)
    with pytest.raises(OSError, match="shorter"):
        index.floor(1900)
    assert index.floor(1900) == (99, 990)
