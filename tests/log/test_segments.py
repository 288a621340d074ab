from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.wire.batch import walk


def sizes(log):
    return [header.size for segment in log.segments for _, header in segment.batches_from(segment.base_offset)]


def test_a_slice_is_as_long_as_asked_and_the_first_batch_whole(harness):
    _, log = harness.open()
    harness.fill(log, 5)
    size = sizes(log)[0]
    for max_bytes, expected in ((1, size), (size, size), (2 * size + 10, 2 * size + 10), (1 << 20, 4 * size)):
        found = log.read(1, max_bytes).range
        assert (found.position, found.length) == (size, expected)
        found.file.release()
    assert log.read(1, size - 1, min_one=False).range is None
    assert log.read(5, 100).range is None


def test_a_whole_slice_ends_with_a_batch(harness):
    store, log = harness.open()
    harness.fill(log, 5)
    size = sizes(log)[0]
    for max_bytes, expected in ((1, size), (2 * size - 1, size), (2 * size, 2 * size), (3 * size + 10, 3 * size)):
        found = log.read(1, max_bytes, is_whole=True).range
        assert (found.position, found.length) == (size, expected)
        found.file.release()
    assert log.read(1, size - 1, min_one=False, is_whole=True).range is None
    store.close()
    # What was written before the start is not in memory.
    _, log = harness.open()
    assert log.read(1, 2 * size + 10, is_whole=True).range.length == 2 * size + 10


def test_offsets_outside_are_refused(harness):
    _, log = harness.open()
    harness.fill(log, 5)
    harness.delete_before(log, 2)
    for offset in (-1, 1, 6):
        with pytest.raises(Refused) as refused:
            log.read(offset, 100)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(2, 100).first_offset == 2


@pytest.mark.parametrize("is_reopened", [False, True])
def test_nothing_at_or_above_the_upper_offset_is_given(harness, is_reopened):
    store, log = harness.open()
    for number in range(12):
        harness.append(log, b"a%d" % number, b"b%d" % number)
    if is_reopened:
        store.close()
        store, log = harness.open()
    for offset in range(24):
        for upper in range(25):
            found = log.read(offset, 1 << 20, upper_offset=upper)
            if found.range is None:
                assert upper <= offset or upper <= found.first_offset + 1
                continue
            data = found.range.file.read_at(found.range.position, found.range.length)
            found.range.file.release()
            headers = [header for _, header in walk(data)]
            assert headers[0].base_offset == found.first_offset == offset // 2 * 2
            assert headers[-1].base_offset < upper


def test_a_damaged_file_is_an_answer_not_a_crash(harness, sim):
    store, log = harness.open()
    harness.fill(log, 40)
    store.close()
    _, log = harness.open()
    for position in range(log.segments[0].size):
        sim.flip_bit(f"{harness.partition}/{0:020d}.log", position, 7)
    with pytest.raises(Refused) as refused:
        log.read(3, 100)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    sim.fail_reads(".log", times=None)
    with pytest.raises(Refused) as refused:
        log.read(20, 100)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
