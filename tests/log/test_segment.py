from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.log.open_files import OpenFiles
from millpond.log.scan import Damaged
from millpond.log.segment import RECENT_BATCHES_MAX, RELATIVE_OFFSET_MAX, RecentBatches, Segment
from millpond.sim.world.disk import SimDisk
from millpond.wire.batch import read_header
from millpond.wire.records import Record, encode_batch


def build(batches, interval=120, base=100):
    """A segment of batches given as (offsets to skip, records, timestamp)."""
    disk = SimDisk()
    disk.make_folder("/p")
    segment = Segment.create(OpenFiles(disk), "/p", base)
    offset, model = base, []
    for skipped, count, timestamp in batches:
        offset += skipped
        records = [Record(offset + n, timestamp, b"k", b"v" * 20) for n in range(count)]
        data = encode_batch(records, base_offset=offset)
        segment.file.append((data,))
        model.append((segment.size, len(data), offset, offset + count - 1, timestamp))
        segment.note(offset, offset + count - 1, timestamp, len(data), interval)
        offset += count
    return disk, segment, model


batches = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=30)


@settings(deadline=None)
@given(batches, st.sampled_from(["growing", "sealed", "without index", "rebuilt", "loaded"]))
def test_places_are_found_in_every_state(batches, state):
    disk, segment, model = build(batches)
    end = segment.next_offset
    if state != "growing":
        segment.seal()
        segment = Segment(OpenFiles(disk), "/p", 100, end, segment.size)
    if state == "without index":
        disk.remove(segment.offsets.path)
    if state == "rebuilt":
        segment.rebuild_indexes(120)
    if state == "loaded":
        segment.load_tail(120)
        assert segment.next_offset == end
    if state != "growing":
        # Only batches in a row are remembered while growing; with holes the file is asked.
        for offset in range(100, end):
            expected = next(place for place in model if place[3] >= offset)
            assert segment.locate(offset) == expected[:3]
    for upper in [place[2] for place in model] + [end]:
        expected = next((place[0] for place in model if place[2] >= upper), segment.size)
        assert segment.position_of_end(upper) == expected
    largest = max(place[4] for place in model)
    assert segment.max_timestamp == largest
    assert segment.max_timestamp_offset == next(place[3] for place in model if place[4] == largest)
    for timestamp in range(11):
        walked = [header for _, header in segment.batches_from_time(timestamp, 100)]
        found = [header.base_offset for header in walked if header.max_timestamp >= timestamp]
        assert found == [place[2] for place in model if place[4] >= timestamp]


@settings(deadline=None)
@given(batches, st.data())
def test_recovery_stops_at_the_first_damage_and_indexes_what_comes_before(batches, data):
    disk, segment, model = build(batches)
    segment.seal()
    position = data.draw(st.integers(0, segment.size - 1))
    disk.flip_bit("/p/00000000000000000100.log", position, data.draw(st.integers(0, 7)))
    point = data.draw(st.integers(100, 100 + position // 200))
    again = Segment(OpenFiles(disk), "/p", 100, -1, segment.size)
    damage = again.recover(point, 120)
    struck = next(place for place in model if place[0] <= position < place[0] + place[1])
    if isinstance(damage, Damaged):
        # With holes before it, a smaller offset may be blamed on the batch that left the hole.
        assert struck[0] - 200 < damage.position <= struck[0] or position - struck[0] < 8
        assert again.next_offset == max((place[3] + 1 for place in model if place[0] < damage.position), default=100)
    else:
        # The offset and the leader epoch lie outside the CRC; or the place is below the recovery point.
        assert position - struck[0] < 16 or struck[3] < point


def test_what_does_not_fit():
    _, segment, model = build([(0, 1, 1)] * 10)
    size = model[0][1]
    assert segment.fits(size, 110, segment.size + size, 1000)
    assert not segment.fits(size, 110, segment.size + size - 1, 1000)
    assert not segment.fits(size, 110, 1 << 30, segment.offsets.size_bytes + 7)
    assert segment.fits(size, 100 + RELATIVE_OFFSET_MAX, 1 << 30, 1000)
    assert not segment.fits(size, 101 + RELATIVE_OFFSET_MAX, 1 << 30, 1000)


def test_its_age_counts_from_the_first_append_or_the_first_batch():
    disk, segment, _ = build([(0, 1, 500), (0, 1, 900)])
    segment.first_append_ms = 400
    assert segment.age_ms(1000) == 600
    again = Segment(OpenFiles(disk), "/p", 100, 102, segment.size)
    assert again.age_ms(1000) == 500
    future = Segment(OpenFiles(disk), "/p", 100, 102, segment.size)
    assert future.age_ms(300) == 0
    assert read_header(again.file.read_at(0, 61)).base_offset == 100


@settings(deadline=None)
@given(st.integers(1, 3 * RECENT_BATCHES_MAX), st.integers(1, 4))
def test_recent_batches_know_the_newest_batches_and_says_so_of_others(count, records):
    recent = RecentBatches()
    for number in range(count):
        recent.add(number * records, number * 100)
    oldest = recent.offsets[0]
    assert min(count, RECENT_BATCHES_MAX // 2) <= len(recent.offsets) <= RECENT_BATCHES_MAX
    for offset in {oldest, count * records - 1, (oldest + count * records) // 2}:
        batch = offset // records
        assert recent.holding(offset, count * 100) == (batch * 100, 100, batch * records)
        assert recent.position_from(offset, count * 100) == -(-offset // records) * 100
        assert recent.offset_from(batch * 100) in ([batch * records] if batch * records > oldest else [oldest, None])
    assert recent.offset_from(count * 100) is None
    assert recent.position_from(count * records, count * 100) == count * 100
    assert recent.holding(oldest - 1, count * 100) is None
    assert recent.position_from(oldest - 1, count * 100) is None
    recent.clear()
    assert recent.holding(oldest, 0) is None
