from __future__ import annotations


def test_few_files_stay_open_however_many_segments_are_read(pond, sim):
    _, log = pond.open()
    pond.fill(log, 400)
    pond.sync(log)
    assert len(log.segments) > 20
    log.open_segments.count_max = 3
    for offset in range(0, 400, 5):
        held = log.read(offset, 100).range
        assert held.file.read_at(held.position, 61)
        held.file.release()
    # Three files each: the log and its two indexes; the active segment has its own.
    open_before = [segment for segment in log.segments if segment._file is not None]
    assert len(open_before) <= 4
    assert list(pond.values(log)) == list(range(400))


def test_a_file_that_is_closed_under_a_reader_stays_readable(pond):
    _, log = pond.open()
    pond.fill(log, 100)
    pond.sync(log)
    log.open_segments.count_max = 1
    held = log.read(0, 100).range
    for segment in log.segments[1:-1]:
        log.read(segment.base_offset, 100).range.file.release()
    assert log.segments[0]._file is None
    assert held.file.read_at(held.position, 61)
    held.file.release()
