from __future__ import annotations

import pytest

from millpond.log.producers import ProducerEntry, ProducerStates, Span
from millpond.log.snapshots import DamagedSnapshot, Snapshots, decode_snapshot, encode_snapshot
from millpond.sim.world.disk import SimDisk


def states(*producer_ids):
    found = ProducerStates()
    for producer_id in producer_ids:
        entry = found.entries[producer_id] = ProducerEntry(2)
        entry.spans.append(Span(8, 9, 100, 101, 0))
        entry.active_ms = 1234
    return found


def test_the_bytes_are_kafkas_own():
    data = encode_snapshot(states(7))
    assert len(data) == 2 + 4 + 4 + 46
    assert data[:2] == b"\x00\x01"
    assert data[6:10] == b"\x00\x00\x00\x01"
    assert data[10:] == bytes.fromhex(
        "000000000000000700020000000900000000000000650000000100000000000004d2ffffffffffffffffffffffff"
    )


def test_every_damaged_byte_and_every_shorter_file_is_noticed():
    data = encode_snapshot(states(7, 8))
    for position in range(len(data)):
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(data[:position])
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])


def test_the_newest_whole_one_counts():
    disk = SimDisk()
    disk.make_folder("/p")
    snapshots = Snapshots(disk, "/p", [])
    for offset in (10, 20, 30):
        snapshots.write(offset, states(offset))
    assert snapshots.newest(25)[0] == 20
    assert list(snapshots.newest(30)[1].entries) == [30]
    disk.flip_bit("/p/00000000000000000030.snapshot", 12)
    again = Snapshots(disk, "/p", disk.list("/p"))
    assert again.offsets == [10, 20, 30]
    assert again.newest(99)[0] == 20
    assert disk.list("/p") == ["00000000000000000010.snapshot", "00000000000000000020.snapshot"]
    assert again.newest(9) is None


def test_old_ones_go_and_so_do_those_of_a_cut_off_future():
    disk = SimDisk()
    disk.make_folder("/p")
    snapshots = Snapshots(disk, "/p", [])
    for offset in (10, 20, 30, 40, 50):
        snapshots.write(offset, states())
    snapshots.drop_after(40)
    snapshots.drop_before(35)
    assert snapshots.offsets == [30, 40]
    assert disk.list("/p") == ["00000000000000000030.snapshot", "00000000000000000040.snapshot"]
