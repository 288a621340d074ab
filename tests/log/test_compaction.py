"""Compaction against a dictionary: the latest value of every key stays, offsets never change, whatever the crash."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.base.errors import Refused
from millpond.log import compaction
from millpond.log.compaction import ENTRY_BYTES, OffsetMap
from millpond.log.limits import LogLimits
from millpond.log.names import FLOOR
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.wire.batch import walk
from millpond.wire.checksum import crc32c
from millpond.wire.records import Record, encode_batch, wrap_payload

COMPACT = LogLimits(
    segment_bytes=500,
    index_interval_bytes=150,
    cleanup_delete=False,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1000,
)


def put(harness, log, key, value, **fields):
    return harness.append(log, value, key=key, **fields)


def bury(harness, log, key):
    record = Record(0, harness.now_ms, key, None)
    return log.append(
        memoryview(bytearray(encode_batch([record]))), leader_epoch=0, now_ms=harness.now_ms
    ).first_offset


def compact(harness, log):
    plan = log.compaction_candidate(harness.now_ms)
    if plan is None:
        return False
    plan.run()
    log.finish_compaction(plan).run()
    return True


def table(harness, log):
    """What a reader from the start ends up with."""
    rows = {}
    for record in harness.records(log):
        rows[record.key] = record.value
    return {key: value for key, value in rows.items() if value is not None}


def assert_connected(log):
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert segment.true_next_offset() == following.base_offset


keys = st.sampled_from([b"a", b"b", b"c", b"a-rather-long-key-that-is-hashed"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(min_size=1, max_size=90)),
        st.tuples(st.just("bury"), keys),
        st.tuples(st.just("compact")),
        st.tuples(st.just("wait"), st.integers(0, 900)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(steps, st.sampled_from([200, 1000, 1 << 20]))
def test_a_reader_ends_up_with_the_same_table(make_pond, steps, buffer_bytes):
    harness = make_pond(limits=replace(COMPACT, dedupe_buffer_bytes=buffer_bytes))
    store, log = harness.open()
    rows, written = {}, {}
    for step in steps:
        match step:
            case ("put", key, value):
                written[put(harness, log, key, value)] = (key, value)
                rows[key] = value
            case ("bury", key):
                written[bury(harness, log, key)] = (key, None)
                rows.pop(key, None)
            case ("compact",):
                compact(harness, log)
            case ("wait", moment):
                harness.now_ms += moment
            case ("reopen", clean):
                store.close() if clean else store.abandon()
                store, log = harness.open()
        assert log.end_offset == len(written)
    assert table(harness, log) == rows
    for record in harness.records(log):
        assert written[record.offset] == (record.key, record.value)
    assert_connected(log)


def test_superseded_records_go_and_offsets_stay(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    for number in range(40):
        put(harness, log, b"k%d" % (number % 2), b"v%d" % number)
    before = log.size_bytes
    assert compact(harness, log)
    assert log.size_bytes < before / 2
    offsets = [record.offset for record in harness.records(log)]
    sealed = [offset for offset in offsets if offset < log.segments.active.base_offset]
    assert sealed == [log.segments.active.base_offset - 2, log.segments.active.base_offset - 1]
    assert log.end_offset == 40
    assert log.compaction.clean_offset == log.segments.active.base_offset
    # Every offset can still be asked for.
    for offset in range(40):
        assert log.read(offset, 1000).range is not None


def test_a_tombstone_stays_for_its_time_and_not_longer(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    put(harness, log, b"gone", b"value")
    bury(harness, log, b"gone")
    harness.fill(log, 10)
    compact(harness, log)
    assert [r.value for r in harness.records(log) if r.key == b"gone"] == [None]
    harness.now_ms += 999
    harness.fill(log, 10)
    compact(harness, log)
    assert [r.value for r in harness.records(log) if r.key == b"gone"] == [None]
    harness.now_ms += 2
    harness.fill(log, 10)
    compact(harness, log)
    assert [r.value for r in harness.records(log) if r.key == b"gone"] == []


def test_a_tombstone_before_a_start_that_is_noted_nowhere_stays(make_pond):
    """A kill brings the start back, and with it the value that nobody compacted."""
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    put(harness, log, b"gone", b"secret")
    bury(harness, log, b"gone")
    log.roll()
    harness.fill(log, 1)
    log.delete_before(2)
    for _ in range(3):
        log.roll()
        harness.fill(log, 1)
        compact(harness, log)
        harness.now_ms += 5_000
    store.abandon()
    _, log = harness.open()
    assert log.start_offset == 0
    assert table(harness, log).keys() == {b"k"}


def test_a_tombstone_that_the_memory_did_not_reach_outlives_its_value(make_pond):
    harness = make_pond(limits=replace(COMPACT, segment_bytes=100_000, dedupe_buffer_bytes=4 * ENTRY_BYTES))
    _, log = harness.open()
    put(harness, log, b"gone", b"secret")
    log.roll()
    for number in range(12):
        put(harness, log, b"u%d" % number, b"v")
    bury(harness, log, b"gone")
    log.roll()
    put(harness, log, b"last", b"v")
    while compact(harness, log):
        assert b"gone" not in table(harness, log)
        harness.now_ms += 5_000
    assert [record.value for record in harness.records(log) if record.key == b"gone"] == [None]


def test_a_producers_sequence_survives_when_all_its_records_are_superseded(make_pond):
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    put(harness, log, b"k", b"first", producer_id=9, producer_epoch=0, base_sequence=0)
    harness.fill(log, 20)
    assert compact(harness, log)
    headers = [header for _, header in log.segments[0].batches_from(0)]
    assert [(h.base_offset, h.record_count) for h in headers if h.producer_id == 9] == [(0, 0)]
    for name in harness.disk.list(harness.partition):
        if name.endswith(".snapshot"):
            harness.disk.remove(f"{harness.partition}/{name}")
    store.abandon()
    _, log = harness.open()
    assert log.producers.entries[9].last_sequence == 0


def test_control_batches_stay(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    marker = encode_batch(
        [Record(0, harness.now_ms, b"\0\0\0\1", b"\0\0\0\0\0\0")], control=True, producer_id=3, producer_epoch=0
    )
    for _ in range(3):
        log.append(memoryview(bytearray(marker)), leader_epoch=0, now_ms=harness.now_ms, from_client=False)
    harness.fill(log, 20)
    assert compact(harness, log)
    data = log.read_batches(0, 10_000)
    assert sum(header.is_control for _, header in walk(data)) == 3


def test_young_uncommitted_and_active_data_is_left_alone(make_pond):
    harness = make_pond(limits=replace(COMPACT, min_compaction_lag_ms=5000))
    _, log = harness.open()
    harness.fill(log, 20)
    assert log.compaction_candidate(harness.now_ms) is None
    harness.now_ms += 5000
    assert log.compaction_candidate(harness.now_ms, upper_offset=2) is None
    plan = log.compaction_candidate(harness.now_ms)
    assert plan is not None
    assert plan.sources[-1].next_offset == log.segments.active.base_offset


def test_the_dirty_ratio_decides_unless_it_waited_too_long(make_pond):
    harness = make_pond(limits=replace(COMPACT, min_cleanable_dirty_ratio=0.9))
    _, log = harness.open()
    for number in range(40):
        put(harness, log, b"key-%d" % number, b"v")
    assert compact(harness, log)
    for number in range(8):
        put(harness, log, b"key-%d" % number, b"v")
    assert log.compaction_candidate(harness.now_ms) is None
    log.limits = replace(log.limits, max_compaction_lag_ms=100)
    assert log.compaction_candidate(harness.now_ms + 99) is None
    assert log.compaction_candidate(harness.now_ms + 100) is not None


def test_appends_and_reads_go_on_while_a_plan_runs(make_pond):
    harness = make_pond(limits=replace(COMPACT, cleanup_delete=True, retention_ms=0))
    _, log = harness.open()
    harness.fill(log, 20)
    old = log.read(0, 100).range
    plan = log.compaction_candidate(harness.now_ms)
    assert log.compaction_candidate(harness.now_ms) is None, "one at a time"
    assert log.expired_segments(harness.now_ms + 10_000) == [], "retention keeps off"
    harness.fill(log, 20, start=20)
    plan.run()
    log.finish_compaction(plan).run()
    assert harness.values(log)[39] == b"value-39"
    assert old.file.read_at(old.position, 61), "a reader keeps the old file"
    old.file.release()
    assert not [
        name for name in harness.disk.list(harness.partition) if name.endswith((".deleted", ".swap", ".cleaned"))
    ]


def test_a_plan_that_is_given_up_leaves_everything_as_it_was(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    harness.fill(log, 20)
    files = harness.disk.list(harness.partition)
    before = harness.values(log)
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    log.give_up_compaction(plan).run()
    assert harness.values(log) == before
    assert [name for name in harness.disk.list(harness.partition) if not name.endswith(FLOOR)] == files
    assert log.compaction_candidate(harness.now_ms) is not None


def life(harness, rows):
    """Puts, compactions and a clean end; `rows` follows what is safe."""
    store, log = harness.open()
    for number in range(36):
        put(harness, log, b"k%d" % (number % 3), b"v%d" % number)
        if number % 9 == 8:
            harness.sync(log)
            rows.update({b"k%d" % (n % 3): n for n in range(number + 1)})
            compact(harness, log)
            harness.now_ms += 2000
    store.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_power_cut_at_every_operation_keeps_the_latest_value_of_every_key(make_pond, seed):
    whole = make_pond(limits=COMPACT)
    life(whole, {})
    for number in range(seed, whole.disk.operations + 1, 3):
        harness = make_pond(disk=SimDisk(seed * 1000 + number), limits=COMPACT)
        harness.disk.crash_at_operation(number)
        rows = {}
        try:
            life(harness, rows)
        except PowerCut:
            harness.disk.crash()
        check(harness, rows, number)


def check(harness, rows, number):
    store, log = harness.open()
    found = table(harness, log)
    for key, least in rows.items():
        assert int(found[key][1:]) >= least, (number, key)
    for record in harness.records(log):
        assert record.value == b"v%d" % record.offset, "offsets never change"
    assert_connected(log)
    # The next compaction and the next start work on what was left.
    for _ in range(20):
        put(harness, log, b"k0", b"v%d" % (log.end_offset))
    compact(harness, log)
    expected = table(harness, log)
    store.close()
    _, log = harness.open()
    assert table(harness, log) == expected


def test_a_plan_that_finds_no_descriptor_holds_nothing(make_pond):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    harness.fill(log, 40)
    plan = log.compaction_candidate(harness.now_ms)
    for segment in log.segments:
        segment.close()
    harness.disk.open_files_max = 1
    with pytest.raises(OSError):
        plan.run()
    log.give_up_compaction(plan).run()
    assert harness.disk.open_files == 0
    harness.disk.open_files_max = None
    assert compact(harness, log)


@pytest.mark.parametrize("reason", ["garbage", "too many records", "too many bytes"])
def test_a_batch_that_cannot_be_unpacked_stays_and_the_rest_is_compacted(make_pond, monkeypatch, reason):
    harness = make_pond(limits=replace(COMPACT, cleanup_compact=False))
    _, log = harness.open()
    harness.fill(log, 10)
    if reason == "garbage":
        bad = wrap_payload(b"\xff" * 50, 2, harness.now_ms, harness.now_ms, codec=4)
    else:
        bad = encode_batch([Record(n, harness.now_ms, b"k", b"v" * 20) for n in range(5)], codec=4)
        name, most = ("RECORDS", 4) if "records" in reason else ("BYTES", 60)
        monkeypatch.setattr(compaction, f"UNPACKED_{name}_MAX", most)
    first = log.append(memoryview(bytearray(bad)), leader_epoch=0, now_ms=harness.now_ms).first_offset
    harness.fill(log, 20)
    log.limits = COMPACT
    before, size = log.read_batches(first, 1), log.size_bytes
    assert compact(harness, log)
    assert log.read_batches(first, 1) == before
    assert log.size_bytes < size / 2


def test_a_plan_that_cannot_be_finished_holds_nothing(make_pond, monkeypatch):
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    harness.fill(log, 40)
    plan = log.compaction_candidate(harness.now_ms)
    plan.run()
    monkeypatch.setattr(harness.disk, "rename", lambda *_: (_ for _ in ()).throw(OSError("broken")))
    with pytest.raises(Refused):
        log.finish_compaction(plan)
    assert (log.compaction.held, bool(log.durability.away)) == (frozenset(), False)
    log.abandon()
    assert harness.disk.open_files == 0


def test_a_swap_that_was_not_published_is_removed(make_pond):
    """Else a later start would finish what was given up."""
    harness = make_pond(limits=COMPACT)
    _, log = harness.open()
    harness.fill(log, 40)
    plan = log.compaction_candidate(harness.now_ms)
    harness.disk.sync_folder = lambda _: (_ for _ in ()).throw(OSError("broken"))
    with pytest.raises(OSError):
        plan.run()
    del harness.disk.sync_folder
    assert [name for name in harness.disk.list(harness.partition) if name.endswith((".swap", ".cleaned"))]
    log.give_up_compaction(plan).run()
    assert not [name for name in harness.disk.list(harness.partition) if name.endswith((".swap", ".cleaned"))]


def noted(*batches):
    """A map that has seen these batches of keys, one after the other."""
    latest, base = OffsetMap(1 << 20), 0
    for keys in batches:
        records = [Record(base + number, 0, key, b"v") for number, key in enumerate(keys)]
        latest.note(encode_batch(records, base_offset=base))
        base += len(keys)
    return latest


keys = st.lists(st.none() | st.binary(max_size=2) | st.binary(min_size=14, max_size=18), min_size=1, max_size=6)


@given(st.lists(keys, min_size=1, max_size=4), st.integers(0, 30), keys)
def test_an_offset_map_knows_what_a_dictionary_knows(batches, base, asked):
    latest = noted(*batches)
    flat = [key for each in batches for key in each]
    model = {key: offset for offset, key in enumerate(flat) if key is not None}
    assert len(latest) == len(model)
    records = [Record(base + number, 0, key, b"v") for number, key in enumerate(asked)]
    flags, has_tombstone = latest.flags(encode_batch(records, base_offset=base))
    assert flags == [key is not None and model.get(key, -1) <= base + number for number, key in enumerate(asked)]
    assert not has_tombstone


def test_of_a_batch_that_cannot_be_read_to_its_end_a_map_knows_nothing():
    """Or an older value would go for one that nobody can read."""
    whole = encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")])
    # The last value says that it is longer than its record.
    broken = whole[:-3] + b"\x20" + whole[-2:]
    latest = OffsetMap(1 << 20)
    latest.note(broken)
    assert len(latest) == 0
    assert latest.flags(broken) is None
    assert latest.flags(whole) == ([True, True], False)


def test_the_memory_of_an_offset_map_is_bounded():
    latest = OffsetMap(3 * ENTRY_BYTES)
    latest.note(encode_batch([Record(0, 0, b"a", b"1")]))
    assert latest.has_room_for(2)
    assert not latest.has_room_for(3)
    assert OffsetMap(0).has_room_for(1), "at least one, or nothing would ever move"


def test_a_key_cannot_pass_for_the_digest_of_another():
    victim = b"some key that is longer than a digest"
    latest = noted([b"x", victim, blake2b(victim, digest_size=16).digest()])
    flags, _ = latest.flags(encode_batch([Record(1, 0, victim, b"v")], base_offset=1))
    assert flags == [True]


def test_times_that_fit_into_no_batch_do_not_stop_compaction(make_pond):
    """One such batch kept its whole partition from being compacted ever again."""
    harness = make_pond(limits=replace(COMPACT, timestamp_after_max_ms=1 << 63))
    _, log = harness.open()
    last = (1 << 63) - 1
    put(harness, log, b"k", b"old")
    batch = bytearray(encode_batch([Record(0, last - 5, b"x", b"1"), Record(1, last, b"k", b"2")]))
    # The same distances from a later base: the last record lies beyond the end of time.
    batch[27:35] = last.to_bytes(8, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log.append(memoryview(batch), leader_epoch=0, now_ms=harness.now_ms)
    put(harness, log, b"x", b"new")
    log.roll()
    harness.sync(log)
    assert compact(harness, log)
    assert [header.base_offset for _, header in walk(log.read_batches(0, 1 << 20))] == [1, 3]


def test_a_compaction_first_removes_what_another_has_left(make_pond):
    """One that was given up, whose files could not be removed: a recovery would put them in place of later ones."""
    harness = make_pond(limits=COMPACT)
    store, log = harness.open()
    for number in range(60):
        put(harness, log, b"k%d" % (number % 20), b"old-%d" % number)
    harness.sync(log)
    given_up = log.compaction_candidate(harness.now_ms)
    given_up.run()
    log.give_up_compaction(given_up)
    assert [name for name in harness.disk.list(harness.partition) if name.endswith(".swap")]
    log.retire(log.segments[:1])
    for number in range(60, 90):
        put(harness, log, b"k%d" % (number % 20), b"new-%d" % number)
    harness.sync(log)
    assert compact(harness, log)
    assert not [name for name in harness.disk.list(harness.partition) if name.endswith(".swap")]
    before = table(harness, log)
    store.close()
    _, log = harness.open()
    assert table(harness, log) == before
