from __future__ import annotations

import pytest

from millpond.base.errors import Refused
from millpond.log.open_files import SEARCHED_MIN, CachedFile, OpenFiles, TooManyOpen
from millpond.sim.world.disk import SimDisk
from millpond.wire.records import Record, encode_batch


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_folder("/p")
    for name in "abcdef":
        disk.replace(f"/p/{name}", name.encode())
    return disk


def test_the_longest_unused_is_closed_and_opened_again_when_asked(disk):
    files = OpenFiles(disk, 2)
    a, b, c = (CachedFile(files, f"/p/{name}") for name in "abc")
    a.open()
    b.open()
    a.open()
    c.open()
    assert [each.is_open for each in (a, b, c)] == [True, False, True]
    assert b.open().read_at(0, 1) == b"b"
    assert disk.open_files == len(files) == 2
    for each in (a, b, c):
        each.close()
    assert disk.open_files == len(files) == 0


def test_what_is_written_to_or_sent_from_stays_open(disk):
    files = OpenFiles(disk, 4)
    written, sent, other, more, last, another = (CachedFile(files, f"/p/{name}") for name in "abcdef")
    written.open_to_write(urgent=False)
    held = sent.open()
    held.retain()
    for each in (other, more, last):
        each.open()
    assert [each.is_open for each in (written, sent, other, more, last)] == [True, True, False, True, True]
    for each in (more, last):
        assert not files.is_pressed
        each.open_to_write(urgent=False)
    assert files.is_pressed
    with pytest.raises(TooManyOpen):
        other.open()
    held.release()
    with pytest.raises(TooManyOpen):
        other.open_to_write(urgent=False)
    other.open_to_write(urgent=True)
    with pytest.raises(TooManyOpen):
        another.open()
    written.unpin()
    assert another.open().read_at(0, 1) == b"f"
    assert not written.is_open
    assert (len(files), files.pinned_count, disk.open_files) == (4, 3, 4)


class CountingFile(CachedFile):
    """Counts how often a file is looked at to find one to close."""

    count = 0

    @property
    def is_held(self):
        CountingFile.count += 1
        return super().is_held


def test_while_all_files_are_sent_from_the_search_for_one_to_close_is_short(disk):
    """A fetch of 500 partitions, with a thousand files in use, held the loop for 600 ms."""
    for number in range(10 * SEARCHED_MIN):
        disk.replace(f"/p/{number}", b"x")
    used = [CountingFile(OpenFiles(disk, 0), f"/p/{number}") for number in range(8 * SEARCHED_MIN)]
    files = OpenFiles(disk, len(used))
    for each in used:
        each.move(files, each.path)
        each.open().retain()
    others = [CachedFile(files, f"/p/{number}") for number in range(len(used), len(used) + 10)]

    def refused():
        """How many files were looked at in vain."""
        CountingFile.count = 0
        with pytest.raises(TooManyOpen):
            others[0].open()
        return CountingFile.count

    assert [refused() for _ in range(3)] == [len(used), SEARCHED_MIN, SEARCHED_MIN]
    # A file that is no longer in use is found by one of the next searches, and at once by the broker's own write.
    used[5].open().release()
    others[1].open_to_write(urgent=True)
    assert not used[5].is_open
    used[6].open().release()
    tries = 0
    while not others[2].is_open:
        tries += 1
        try:
            others[2].open()
        except TooManyOpen:
            assert tries < len(used) / SEARCHED_MIN
    # After some success the whole list is searched again.
    for each in used[8:]:
        each.open().release()
    for each in others[3:8]:
        each.open()
    for each in [*used, *others[2:8]]:
        if each.is_open and not each.is_held:
            each.open().retain()
    assert refused() > SEARCHED_MIN
    assert refused() == SEARCHED_MIN


def test_few_files_stay_open_however_many_segments_are_read(harness, sim):
    _, log = harness.open()
    for start in range(0, 400, 20):
        harness.fill(log, 20, start)
        harness.sync(log)
    assert len(log.segments) > 20
    log.files.count_max = 8
    for offset in range(0, 400, 5):
        held = log.read(offset, 100).range
        assert held.file.read_at(held.position, 61)
        held.file.release()
    assert sim.open_files <= 8 + 1, "and the lock of the folder"
    assert list(harness.values(log)) == list(range(400))


def test_a_file_that_is_closed_under_a_reader_stays_readable(harness):
    _, log = harness.open()
    harness.fill(log, 100)
    harness.sync(log)
    held = log.read(0, 100).range
    log.segments[0].close()
    assert log.segments[0].open_file is None
    assert held.file.read_at(held.position, 61)
    held.file.release()


def test_when_too_many_files_wait_for_a_sync_clients_wait_and_the_broker_goes_on(harness):
    _, log = harness.open()
    harness.fill(log, 60)
    assert log.files.pinned_count > 3
    log.files.count_max = log.files.pinned_count + 1
    log.roll()
    with pytest.raises(Refused, match="ulimit"):
        harness.append(log, b"client's")
    log.append(harness.batch(b"broker's"), leader_epoch=0, now_ms=harness.now_ms, from_client=False)
    harness.sync(log)
    assert log.files.pinned_count == 0
    assert harness.append(log, b"client's") == 61


def test_a_read_that_finds_all_files_in_use_has_nothing_yet(harness):
    store, log = harness.open()
    harness.fill(log, 60)
    store.close()
    _, log = harness.open()
    log.files.count_max = 4
    held, number = [], 0
    while ranges := log.read_ranges(log.segments[number].base_offset, 100).ranges:
        held += ranges
        number += 1
    assert 1 <= number <= 4
    with pytest.raises(Refused, match="ulimit"):
        log.read_batches(log.segments[number].base_offset, 100)
    for each in held:
        each.file.release()
    assert log.read_ranges(log.segments[number].base_offset, 100).ranges


def test_what_follows_a_refused_first_batch_of_a_producer_is_refused_too(harness):
    _, log = harness.open()
    harness.fill(log, 60)
    count_max, log.files.count_max = log.files.count_max, log.files.pinned_count + 1
    log.roll()

    def send(sequence):
        record = Record(0, harness.now_ms, b"k", b"v")
        batch = encode_batch([record], producer_id=5, producer_epoch=0, base_sequence=sequence)
        return log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=harness.now_ms).first_offset

    with pytest.raises(Refused, match="ulimit"):
        send(0)
    log.files.count_max = count_max
    with pytest.raises(Refused, match="not written"):
        send(1)
    assert [send(0), send(1)] == [60, 61]
