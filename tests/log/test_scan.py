from __future__ import annotations

import pytest

from millpond.log.scan import Damaged, batches, checked, headers
from millpond.sim.world.disk import SimDisk
from millpond.wire.records import Record, encode_batch

SIZES = (0, 10, 500, 3, 9000, 1)


@pytest.fixture
def file():
    file = SimDisk().open("/log", create=True)
    for offset, size in enumerate(SIZES):
        file.append((encode_batch([Record(offset, 5, b"k", b"v" * size)], base_offset=offset),))
    return file


@pytest.mark.parametrize("chunk", [61, 70, 128, 4096, 1 << 20])
def test_every_walk_meets_every_batch_whatever_the_size_of_its_steps(file, chunk):
    expected = list(range(len(SIZES)))
    assert [header.base_offset for _, header in headers(file, 0, file.size(), chunk)] == expected
    assert [header.base_offset for _, header in checked(file, 0, file.size(), chunk)] == expected
    whole = list(batches(file, 0, file.size(), chunk))
    assert [header.base_offset for header, _ in whole] == expected
    assert b"".join(bytes(view) for _, view in whole) == file.read_at(0, file.size())


@pytest.mark.parametrize("walk", [headers, checked, batches])
def test_a_torn_end_is_reported_with_its_position(file, walk):
    last = file.size() - len(encode_batch([Record(0, 5, b"k", b"v")]))
    for end in (last + 1, last + 60, last + 61, file.size() - 1):
        met = []
        with pytest.raises(Damaged) as damage:
            met.extend(walk(file, 0, end))
        assert damage.value.position == last
    assert len(list(walk(file, 0, last))) == len(SIZES) - 1


def test_only_a_checked_walk_looks_at_the_records(file):
    data = bytearray(file.read_at(0, file.size()))
    data[65] ^= 1
    rotten = SimDisk().open("/log", create=True)
    rotten.append((data,))
    assert len(list(headers(rotten, 0, rotten.size()))) == len(SIZES)
    with pytest.raises(Damaged):
        list(checked(rotten, 0, rotten.size()))


def test_zeros_and_noise_are_no_batches():
    for noise in (bytes(200), b"\xff" * 200, b"\x00" * 16 + b"\x02" + b"\x00" * 200):
        file = SimDisk().open("/log", create=True)
        file.append((noise,))
        for walk in (headers, checked, batches):
            with pytest.raises(Damaged):
                list(walk(file, 0, file.size()))
