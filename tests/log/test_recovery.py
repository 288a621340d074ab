"""Whatever moment the power goes: what was synced is there, nothing is invented, offsets never change."""

from __future__ import annotations

import contextlib
import errno
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.log import recovery
from millpond.log.checkpoints import decode_epochs
from millpond.log.limits import LogLimits
from millpond.log.names import OFFSET_INDEX, TIME_INDEX, UNSETTLED_FILE
from millpond.sim.world.disk import PowerCut, SimDisk
from millpond.wire.batch import patch_offset_and_epoch
from support.seeds import seeds

SEEDS = (1, 2, 3)


class Model:
    """What a log was told, and what it promised."""

    def __init__(self):
        self.values = {}
        self.safe = 0
        self.start = 0


def life(harness, model):
    """One life of a log: appends, rolls, syncs, retention, a cut, and a clean end."""
    store, log = harness.open()
    for number in range(24):
        value = b"value-%d" % number
        model.values[log.end_offset] = value
        harness.append(log, value, epoch=number // 9)
        if number % 5 == 4:
            harness.sync(log)
            model.safe = max(model.safe, log.synced_offset)
        if number % 8 == 7:
            store.checkpoint()
        if number == 15:
            model.start = log.segments[2].base_offset
            harness.remove(log.retire(log.segments[:2]))
    cut_at = log.end_offset - 3
    model.safe = min(model.safe, cut_at)
    old = {offset: model.values[offset] for offset in range(cut_at, log.end_offset)}
    harness.cut(log, cut_at)
    assert log.end_offset == cut_at
    for offset in old:
        del model.values[offset]
    for number in range(4):
        model.values[log.end_offset] = b"again-%d" % number
        harness.append(log, b"again-%d" % number, epoch=7)
    harness.sync(log)
    model.safe = log.synced_offset
    model.start = log.start_offset + 3
    harness.delete_before(log, model.start)
    # It leads, and nobody writes.
    log.begin_epoch(9)
    harness.sync(log)
    store.close()


def check(harness, model, *, before_cut=None):
    store = harness.store()
    report = store.open(harness.now_ms)
    assert not report.failed, report.failed
    log = store.get(harness.tp)
    if log is None:
        assert model.safe == 0
        store.close()
        return
    found = harness.values(log)
    assert log.end_offset >= model.safe
    assert sorted(found) == list(range(log.start_offset, log.end_offset)), "a hole, or offsets twice"
    assert log.start_offset <= model.start
    for offset, value in found.items():
        allowed = {model.values.get(offset), (before_cut or {}).get(offset)}
        assert value in allowed, f"offset {offset} reads {value}, written was {allowed}"
    for offset in range(model.start, model.safe):
        assert offset in found
    check_epochs(log)
    # It goes on where it stopped, and a clean end is believed.
    for number in range(12):
        harness.append(log, b"value-%d" % (1000 + number), epoch=max(log.last_epoch, 0))
    expected = harness.values(log)
    store.close()
    store, log = harness.open()
    assert harness.values(log) == expected
    check_epochs(log)
    # And what was synced after a crash is not read again after the next.
    harness.sync(log)
    store.checkpoint()
    store.abandon()
    store, log = harness.open()
    check_epochs(log)
    store.close()


def check_epochs(log):
    """What is known of leader epochs is what the batches say: by it replicas are cut back."""
    entries = log.epochs.entries
    assert entries == sorted(entries)
    for segment in log.segments:
        for _, header in segment.batches_from(segment.base_offset):
            if header.base_offset >= log.start_offset:
                assert log.epochs.of(header.base_offset) == header.leader_epoch, (header.base_offset, entries)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_at_every_disk_operation_loses_nothing_that_was_synced(make_pond, seed):
    small = LogLimits(segment_bytes=400, index_interval_bytes=150)
    whole = make_pond(disk=SimDisk(seed), limits=small)
    life(whole, Model())
    operations = whole.disk.operations
    assert operations > 100
    values_before_cut = {offset: b"value-%d" % offset for offset in range(24)}
    for number in range(seed, operations + 1, len(SEEDS)):
        harness = make_pond(disk=SimDisk(seed * 1000 + number), limits=small)
        harness.disk.crash_at_operation(number)
        model = Model()
        try:
            life(harness, model)
        except PowerCut:
            harness.disk.crash()
        check(harness, model, before_cut=values_before_cut)


def written(harness, count=6):
    """A folder with `count` batches, everything synced and checkpointed up to before the last batch."""
    store, log = harness.open()
    harness.fill(log, count - 1)
    harness.sync(log)
    store.checkpoint()
    harness.fill(log, 1, start=count - 1)
    store.abandon()
    return harness.disk.read(f"{harness.partition}/{0:020d}.log")


def rewrite(harness, name, data):
    file = harness.disk.open(f"{harness.partition}/{name}", create=True)
    file.truncate(0)
    file.append((data,))
    file.close()


@pytest.mark.parametrize("is_unsettled", [False, True])
def test_a_tail_torn_at_every_byte_is_cut_off(make_pond, is_unsettled):
    """Also where the start before this one has not finished what a compaction had left."""
    whole = written(make_pond())
    size = len(whole) // 6
    for kept in range(size):
        for filling in (b"", b"\x00" * (size - kept)):
            harness = make_pond()
            written(harness)
            rewrite(harness, f"{0:020d}.log", whole[: 5 * size + kept] + filling)
            if is_unsettled:
                rewrite(harness, UNSETTLED_FILE, b"")
            store, log = harness.open()
            # Only a filling that happens to complete the batch may bring it back.
            expected = 6 if whole[: 5 * size + kept] + filling == whole else 5
            assert log.end_offset == expected, (kept, len(filling))
            assert list(harness.values(log).values()) == [b"value-%d" % number for number in range(expected)]
            harness.fill(log, 1, start=9)
            assert harness.values(log)[expected] == b"value-9"
            store.abandon()


def test_damage_below_the_recovery_point_takes_the_partition_offline(harness, sim):
    whole = written(harness)
    sim.flip_bit(f"{harness.partition}/{0:020d}.log", len(whole) // 6 * 4 + 70)
    store = harness.store()
    report = store.open(harness.now_ms)
    assert list(report.failed) == [harness.tp]
    assert "was durable" in report.failed[harness.tp]
    assert sim.size(f"{harness.partition}/{0:020d}.log") == len(whole), "nothing is thrown away"
    with pytest.raises(Refused, match="offline"):
        store.create(harness.tp, harness.topic_id)


def test_damage_above_the_recovery_point_keeps_what_follows_it_aside(make_pond):
    harness = make_pond()
    store, log = harness.open()
    harness.fill(log, 7)
    store.abandon()
    harness.disk.flip_bit(f"{harness.partition}/{0:020d}.log", 3 * (log.segments.active.size // 7) + 70)
    store = harness.store()
    report = store.open(harness.now_ms)
    log = store.get(harness.tp)
    assert log.end_offset == 3
    assert len(report.notes) == 1
    assert "after the damage in" in report.notes[0]
    assert len(harness.disk.read(f"{harness.partition}/{3:020d}.cut")) == 4 * log.segments.active.size // 3


def test_indexes_that_are_lost_short_or_wrong_are_made_again(make_pond):
    def mangle(data):
        yield b""
        yield data[:5]
        yield data[:-3]
        yield bytes(len(data))
        yield data[::-1]
        yield b"\xff" * len(data)
        yield data[:8] + data

    for clean in (True, False):
        reference = make_pond()
        store, log = reference.open()
        reference.fill(log, 40)
        store.close()
        names = [name for name in reference.disk.list(reference.partition) if name.endswith("index")]
        assert len(names) > 6
        for name in names:
            for variant in range(7):
                harness = make_pond()
                store, log = harness.open()
                harness.fill(log, 40)
                expected = harness.values(log)
                harness.sync(log)
                store.close() if clean else (store.checkpoint(), store.abandon())
                path = f"{harness.partition}/{name}"
                data = (harness.disk.exists(path) and harness.disk.read(path)) or b"\x01" * 16
                rewrite(harness, name, list(mangle(data))[variant])
                store, log = harness.open()
                assert harness.values(log) == expected, (clean, name, variant)
                assert log.find_by_timestamp(harness.now_ms).offset == 0
                store.abandon()


@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX])
def test_indexes_with_a_torn_end_that_were_sealed_after_the_last_sync_are_made_again(make_pond, suffix):
    """Found by a seed of the simulator: a time of which the last bytes were missing was still a time."""

    def sealed():
        harness = make_pond()
        store, log = harness.open()
        for number in range(8):
            harness.append(log, b"value-%d" % number, timestamp=harness.now_ms + 70_000 * number)
        harness.sync(log)
        store.checkpoint()
        log.roll()
        path = log.segments[0].path(suffix)
        store.abandon()
        return harness, path

    harness, path = sealed()
    whole = harness.disk.read(path)
    assert len(whole) >= 3 * 8
    for position in range(len(whole)):
        harness, path = sealed()
        file = harness.disk.open(path)
        file.truncate(position)
        file.append((bytes(len(whole) - position),))
        file.close()
        store, _ = harness.open()
        assert harness.disk.read(path) == whole, position
        store.abandon()


def test_producers_are_known_again_after_a_clean_end_and_after_a_crash(make_pond):
    for clean in (True, False):
        harness = make_pond()
        store, log = harness.open()
        for number in range(30):
            harness.append(log, b"v%d" % number, producer_id=5, producer_epoch=1, base_sequence=number)
        store.close() if clean else store.abandon()
        store, log = harness.open()
        again = log.append(
            harness.batch(b"v29", producer_id=5, producer_epoch=1, base_sequence=29),
            leader_epoch=0,
            now_ms=harness.now_ms,
        )
        assert (again.duplicate, again.first_offset) == (True, 29)
        with pytest.raises(Refused) as refusal:
            harness.append(log, b"gap", producer_id=5, producer_epoch=1, base_sequence=31)
        assert refusal.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert harness.append(log, b"next", producer_id=5, producer_epoch=1, base_sequence=30) == 30


def test_the_last_snapshot_is_made_again_after_a_crash(harness):
    store, log = harness.open()
    for _ in range(2):
        harness.append(log, b"value", producer_id=1, producer_epoch=0, base_sequence=log.end_offset)
        log.roll()
    before = harness.disk.read(f"{harness.partition}/{2:020d}.snapshot")
    store.abandon()
    rewrite(harness, f"{2:020d}.snapshot", harness.disk.read(f"{harness.partition}/{1:020d}.snapshot"))
    _, log = harness.open()
    assert log.snapshots.offsets == [2]
    assert harness.disk.read(f"{harness.partition}/{2:020d}.snapshot") == before


def test_epochs_are_read_from_the_log_when_their_file_is_gone(harness, sim):
    store, log = harness.open()
    for epoch in (0, 0, 3, 3, 4):
        harness.append(log, b"value", epoch=epoch)
    store.close()
    sim.remove(f"{harness.partition}/leader-epoch-checkpoint")
    _, log = harness.open()
    assert log.epochs.entries == [(0, 0), (3, 2), (4, 4)]
    assert log.end_offset_for_epoch(3) == (3, 4)


@pytest.mark.parametrize("is_clean", [True, False])
def test_epochs_read_from_the_log_after_a_crash_are_noted(harness, is_clean):
    store, log = harness.open()
    for epoch in (0, 0, 3):
        harness.append(log, b"value", epoch=epoch)
    harness.sync(log)
    store.checkpoint()
    harness.append(log, b"value", epoch=4)
    store.abandon()
    store, log = harness.open()
    harness.sync(log)
    store.checkpoint()
    store.close() if is_clean else store.abandon()
    _, log = harness.open()
    assert log.epochs.entries == [(0, 0), (3, 2), (4, 3)]


def test_an_epoch_that_wrote_nothing_is_gone_for_good(harness):
    """A follower is given records of an earlier epoch at the same offset."""
    store, log = harness.open()
    harness.append(log, b"value", epoch=1)
    log.begin_epoch(2)
    store.close()
    store, log = harness.open()
    assert log.last_epoch == 1
    harness.append(log, b"value", epoch=1)
    store.close()
    _, log = harness.open()
    assert log.epochs.entries == [(1, 0)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_empty_folder_never_starts_before_offsets_that_were_used(harness, sim, is_clean):
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    harness.delete_before(log, 5)
    store.close() if is_clean else store.abandon()
    for name in sim.list(harness.partition):
        sim.remove(f"{harness.partition}/{name}")
    _, log = harness.open()
    assert (log.start_offset, log.end_offset) == (5, 5)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_folder_whose_records_are_all_gone_is_damaged(harness, sim, is_clean):
    """Who leads with such a log would have every replica delete what it has."""
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    store.checkpoint()
    store.close() if is_clean else store.abandon()
    sim.remove(f"{harness.partition}/{0:020d}.log")
    store = harness.store()
    report = store.open(harness.now_ms)
    assert "is empty, but everything below offset 5" in report.failed[harness.tp]
    assert report.has_lost


def test_epochs_of_deleted_records_that_are_back_after_a_crash_are_known(harness):
    store, log = harness.open()
    for epoch in (1, 2, 3, 3):
        harness.append(log, b"value", epoch=epoch)
    harness.sync(log)
    store.checkpoint()
    # The note of the epochs follows with the next sync, that of the start with the next checkpoint.
    log.delete_before(3)
    harness.sync(log)
    store.abandon()
    _, log = harness.open()
    assert (log.start_offset, log.epochs.entries) == (0, [(1, 0), (2, 1), (3, 2)])


def test_epochs_of_what_was_cut_off_are_not_those_of_what_came_after_a_gap(harness):
    store, log = harness.open()
    for epoch in (1, 1, 2, 2):
        harness.append(log, b"value", epoch=epoch)
    harness.sync(log)
    store.checkpoint()
    harness.cut(log, 2)
    batch = harness.batch(b"after a gap")
    patch_offset_and_epoch(batch, 0, 5, 3)
    log.append_follower(batch, now_ms=harness.now_ms)
    store.abandon()
    _, log = harness.open()
    assert log.epochs.entries == [(1, 0), (3, 5)]


def test_an_offset_that_rotted_deletes_nothing(make_pond):
    for bit in range(64):
        harness = make_pond()
        store, log = harness.open()
        harness.fill(log, 40)
        harness.sync(log)
        store.checkpoint()
        last = list(log.segments[0].batches_from(0))[-1][0]
        others = {segment.base_offset: segment.size for segment in log.segments[1:]}
        store.abandon()
        harness.disk.flip_bit(f"{harness.partition}/{0:020d}.log", last + bit // 8, bit % 8)
        store = harness.store()
        store.open(harness.now_ms)
        for base, size in others.items():
            assert harness.disk.size(f"{harness.partition}/{base:020d}.log") == size, bit
        store.abandon()


@pytest.mark.parametrize("seed", seeds(range(6)))
def test_a_kill_and_then_a_power_cut_cannot_take_the_place_of_what_was_retired(make_pond, seed):
    limits = LogLimits(segment_bytes=400, retention_ms=10)
    for number in range(1, 60):
        harness = make_pond(disk=SimDisk(seed * 100 + number), limits=limits)
        store, log = harness.open()
        harness.fill(log, 12)
        harness.sync(log)
        end = log.end_offset
        log.retire(log.expired_segments(harness.now_ms + 11))
        store.checkpoint()
        # The process dies, its writes live on in the page cache; then, while the next one starts, the power goes.
        store.abandon()
        harness.disk.crash_at_operation(harness.disk.operations + number)
        with contextlib.suppress(PowerCut):
            store, _ = harness.open()
            store.close()
        harness.disk.crash()
        _, log = harness.open()
        assert log.end_offset == end


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_older_note_of_epochs_is_not_believed(harness, sim, is_clean):
    """One that an earlier version left behind, or that somebody has put back."""
    store, log = harness.open()
    old = b""
    for epoch in (1, 1, 2, 2, 3):
        harness.append(log, b"value", epoch=epoch)
        harness.sync(log)
        old = old or sim.read(f"{harness.partition}/leader-epoch-checkpoint")
    store.checkpoint()
    store.close() if is_clean else store.abandon()
    sim.replace(f"{harness.partition}/leader-epoch-checkpoint", old)
    store, log = harness.open()
    assert log.epochs.entries == [(1, 0), (2, 2), (3, 4)]
    store.close()
    assert decode_epochs(sim.read(f"{harness.partition}/leader-epoch-checkpoint")) == log.epochs.entries
    _, log = harness.open()
    assert log.epochs.entries == [(1, 0), (2, 2), (3, 4)]


def test_the_last_segment_may_be_empty_when_epochs_are_looked_at(harness, sim):
    store, log = harness.open()
    for epoch in (1, 2):
        harness.append(log, b"value", epoch=epoch)
    log.roll()
    store.close()
    sim.replace(f"{harness.partition}/leader-epoch-checkpoint", b"0\n1\n1 0\n")
    _, log = harness.open()
    assert log.epochs.entries == [(1, 0), (2, 1)]


def torn_pond(make_pond, seed):
    """One record is safe; what came after it the power has torn."""
    harness = make_pond(disk=SimDisk(seed), limits=LogLimits(segment_bytes=400, index_interval_bytes=150))
    store, log = harness.open()
    harness.append(log, b"safe")
    harness.sync(log)
    store.checkpoint()
    for number in range(6):
        harness.append(log, b"old-%d" % number, epoch=1)
    harness.disk.crash()
    return harness


def assert_nothing_old_comes_back(harness):
    """When more is written and the power goes again."""
    _, log = harness.open()
    written = dict(harness.values(log))
    for number in range(6):
        written[harness.append(log, b"new-%d" % number, epoch=2)] = b"new-%d" % number
    harness.disk.crash()
    _, log = harness.open()
    found = harness.values(log)
    assert found == {offset: value for offset, value in written.items() if offset in found}
    assert list(found) == list(range(len(found)))


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_what_a_recovery_has_cut_off_stays_off_when_the_power_goes_again(make_pond, seed):
    """Or torn bytes come back in the middle of the log, and old records behind new ones."""
    assert_nothing_old_comes_back(torn_pond(make_pond, seed))


@pytest.mark.parametrize("how", ["kill", "descriptors"])
@pytest.mark.parametrize("seed", seeds(range(40)))
def test_a_recovery_that_is_broken_off_after_its_cut_is_done_again(make_pond, monkeypatch, seed, how):
    """Nothing is torn any more in the page cache, and on the disk it still is."""
    harness = torn_pond(make_pond, seed)

    def break_off(*_):
        raise KeyboardInterrupt if how == "kill" else OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(recovery._Opener, "_keep_cut", break_off)
        with contextlib.suppress(KeyboardInterrupt):
            harness.store().open(harness.now_ms)
    harness.disk.drop_process()
    assert_nothing_old_comes_back(harness)


@pytest.mark.parametrize("how", ["close", "roll", "roll and write"])
@pytest.mark.parametrize("seed", seeds(range(20)))
def test_what_a_write_without_room_has_left_does_not_come_back(make_pond, seed, how):
    """It was cut off at once, and a power cut may undo that."""
    harness = make_pond(disk=SimDisk(seed))
    store, log = harness.open()
    harness.fill(log, 1)
    harness.sync(log)
    store.checkpoint()
    harness.disk.fill(14)
    with pytest.raises(Refused):
        harness.append(log, b"refused")
    harness.disk.heal()
    if how == "close":
        store.close()
    else:
        log.roll()
    if how == "roll and write":
        harness.append(log, b"new")
        harness.sync(log)
    harness.disk.crash()
    _, log = harness.open()
    assert list(harness.values(log).values()) == [b"value-0", b"new"][: log.end_offset]
    assert log.end_offset == 1 + (how == "roll and write")
    harness.append(log, b"later")
    assert list(harness.values(log).values())[-1] == b"later"


def test_what_follows_a_segment_with_a_torn_end_stays_if_it_connects(make_pond):
    harness = make_pond()
    store, log = harness.open()
    harness.fill(log, 2)
    log.roll()
    harness.append(log, b"new")
    store.abandon()
    file = harness.disk.open(f"{harness.partition}/{0:020d}.log")
    file.append((b"torn",))
    file.close()
    _, log = harness.open()
    assert list(harness.values(log).values()) == [b"value-0", b"value-1", b"new"]


@pytest.mark.parametrize("how", ["nothing is safe yet", "a swap is left", "it is cut"])
def test_a_producer_whose_batches_are_gone_is_known_after_a_kill_or_a_cut(make_pond, how):
    harness = make_pond(limits=LogLimits(segment_bytes=500, cleanup_compact=True, min_cleanable_dirty_ratio=0.01))
    store, log = harness.open()
    for sequence in range(3):
        harness.append(log, b"value", key=b"p", producer_id=5, producer_epoch=0, base_sequence=sequence)
    log.roll()
    harness.fill(log, 6)
    log.roll()
    harness.fill(log, 1)
    if how == "a swap is left":
        harness.sync(log)
        store.checkpoint()
    harness.remove(log.retire([log.segments[0]]))
    if how == "a swap is left":
        log.compaction_candidate(harness.now_ms).run()
    if how == "it is cut":
        log.snapshots.drop_after(0)
        harness.cut(log, log.end_offset - 1)
    else:
        store.abandon()
        store, log = harness.open()
    assert log.start_offset == 3
    assert [(each.producer_id, each.last_sequence) for each in log.producer_states()] == [(5, 2)]
    again = harness.batch(b"value", key=b"p", producer_id=5, producer_epoch=0, base_sequence=2)
    assert log.append(again, leader_epoch=0, now_ms=harness.now_ms).duplicate


def test_a_snapshot_without_room_leaves_nothing(harness):
    store, log = harness.open()
    harness.append(log, b"value", producer_id=1, producer_epoch=0, base_sequence=0)
    log.roll()
    harness.append(log, b"value", producer_id=1, producer_epoch=0, base_sequence=1)
    store.abandon()
    harness.disk.fail_opens(".snapshot", code=errno.ENOSPC)
    store, log = harness.open()
    assert not log.snapshots.offsets
    harness.disk.heal()
    harness.disk.fill(20)
    with pytest.raises(OSError):
        log.snapshots.write(2, log.producers)
    harness.disk.heal()
    assert not log.snapshots.offsets
    assert not harness.disk.exists(f"{harness.partition}/{2:020d}.snapshot")


def test_a_producer_whose_batches_are_gone_is_known_after_two_kills(harness):
    store, log = harness.open()
    for sequence in range(3):
        harness.append(log, b"value", producer_id=5, producer_epoch=0, base_sequence=sequence)
    log.roll()
    harness.fill(log, 1)
    log.roll()
    harness.fill(log, 1)
    harness.remove(log.retire([log.segments[0]]))
    store.abandon()
    store, log = harness.open()
    harness.sync(log)
    store.checkpoint()
    store.abandon()
    _, log = harness.open()
    assert log.start_offset == 3
    assert [(each.producer_id, each.last_sequence) for each in log.producer_states()] == [(5, 2)]


def test_a_torn_snapshot_hides_no_newer_one(harness):
    store, log = harness.open()
    for sequence in range(3):
        harness.append(log, b"value", producer_id=5, producer_epoch=0, base_sequence=sequence)
    log.roll()
    harness.fill(log, 1)
    harness.remove(log.retire([log.segments[0]]))
    store.close()
    store, log = harness.open()
    harness.fill(log, 1)
    harness.sync(log)
    store.checkpoint()
    store.abandon()
    rewrite(harness, f"{3:020d}.snapshot", b"torn")
    _, log = harness.open()
    assert (log.start_offset, log.end_offset) == (3, 5)
    assert [(each.producer_id, each.last_sequence) for each in log.producer_states()] == [(5, 2)]


@pytest.mark.parametrize("seed", seeds(range(150)))
def test_a_snapshot_that_was_dropped_does_not_come_back(make_pond, seed):
    """A power cut took its batches, others came to the same offset, and another power cut."""
    harness = make_pond(disk=SimDisk(seed))
    store, log = harness.open()
    harness.fill(log, 1)
    harness.sync(log)
    store.checkpoint()
    lost = harness.batch(b"lost", producer_id=5, producer_epoch=0, base_sequence=0)
    log.append(lost, leader_epoch=0, now_ms=harness.now_ms)
    log.roll()
    harness.disk.crash()
    store, log = harness.open()
    if log.end_offset != 1:
        return
    harness.append(log, b"of others")
    log.roll()
    log.delete_before(2)
    store.checkpoint()
    harness.disk.crash()
    _, log = harness.open()
    assert 5 not in log.producers.entries


@pytest.mark.parametrize("seed", seeds(range(40)))
def test_what_was_refused_replaces_nothing_that_came_after_it(make_pond, seed):
    """A follower's batch comes back with a power cut, behind a sealed segment, and ends where a later one begins."""
    harness = make_pond(disk=SimDisk(seed))
    store, log = harness.open()

    def follow(*batches):
        log.append_follower(memoryview(bytearray(b"".join(batches))), now_ms=harness.now_ms)

    def batch(value, offset, epoch):
        data = harness.batch(value)
        patch_offset_and_epoch(data, 0, offset, epoch)
        return bytes(data)

    follow(batch(b"safe", 0, 3))
    harness.sync(log)
    store.checkpoint()
    refused = batch(b"refused", 1, 3)
    harness.disk.fill(len(refused))
    with pytest.raises(Refused):
        follow(refused, batch(b"refused", 2, 3))
    harness.disk.heal()
    for offset in (1, 2):
        log.roll()
        harness.disk.sync_folder(harness.partition)
        follow(batch(b"new", offset, 4))
    harness.disk.crash()
    _, log = harness.open()
    assert list(harness.values(log).values()) in ([b"safe", *[b"new"] * count] for count in range(3)) or list(
        harness.values(log).values()
    ) == [b"safe", b"refused"]


def test_an_owner_that_found_no_room_is_noted_when_there_is_some(harness):
    store, log = harness.open()
    harness.disk.fail_opens("partition.metadata", code=errno.ENOSPC)
    with pytest.raises(OSError):
        log.set_topic_id(UUID(int=8))
    harness.disk.heal()
    log.set_topic_id(UUID(int=8))
    harness.sync(log)
    store.abandon()
    store = harness.store()
    store.open(harness.now_ms)
    assert store.get(harness.tp).topic_id == UUID(int=8)
