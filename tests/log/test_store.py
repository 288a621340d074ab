from __future__ import annotations

import errno
from uuid import UUID

import pytest

from millpond.base.errors import Refused
from millpond.base.ids import TopicPartition
from millpond.log.limits import LogLimits
from millpond.log.recovery import open_log
from millpond.log.store import FolderInUse
from millpond.node.disk import RealDisk
from millpond.sim.world.disk import PowerCut, SimDisk


def test_only_one_process_uses_a_folder(pond):
    store, _ = pond.open()
    with pytest.raises(FolderInUse, match="another process"):
        pond.store().open(pond.now_ms)
    store.close()
    pond.open()


def test_a_clean_end_is_believed_once(pond, sim):
    store, log = pond.open()
    pond.fill(log, 3)
    store.close()
    assert sim.exists("/data/.kafka_cleanshutdown")
    store = pond.store()
    assert store.open(pond.now_ms).clean
    assert not sim.exists("/data/.kafka_cleanshutdown")
    store.abandon()
    assert not pond.store().open(pond.now_ms).clean


def test_the_files_are_those_that_kafka_has(pond, sim):
    store, log = pond.open()
    pond.fill(log, 20)
    pond.delete_before(log, 2)
    store.close()
    assert sim.list("/data") == [
        ".kafka_cleanshutdown",
        ".lock",
        "log-start-offset-checkpoint",
        "pond-0",
        "recovery-point-offset-checkpoint",
    ]
    assert sim.read("/data/recovery-point-offset-checkpoint") == b"0\n1\npond 0 20\n"
    assert sim.read("/data/log-start-offset-checkpoint") == b"0\n1\npond 0 2\n"
    names = sim.list(pond.partition)
    for base in log.segments.bases:
        assert {f"{base:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= set(names)
    assert {"leader-epoch-checkpoint", "partition.metadata", f"{20:020d}.snapshot"} <= set(names)


def test_one_partition_that_cannot_be_opened_does_not_keep_the_others(pond, sim):
    store, log = pond.open()
    other = store.create(TopicPartition("other", 1), UUID(int=2))
    for each in (log, other):
        pond.fill(each, 3)
        pond.sync(each)
    store.checkpoint()
    store.abandon()
    sim.flip_bit(f"/data/other-1/{0:020d}.log", 70)
    store = pond.store()
    report = store.open(pond.now_ms)
    assert list(report.failed) == [TopicPartition("other", 1)]
    assert store.get(pond.tp).end_offset == 3
    store.checkpoint()
    assert b"other 1 3" in sim.read("/data/recovery-point-offset-checkpoint"), "what is known of it stays known"
    store.delete(TopicPartition("other", 1)).run()
    fresh = store.create(TopicPartition("other", 1), UUID(int=3))
    assert fresh.end_offset == 0


def test_a_deleted_partition_is_gone_and_its_name_is_free(pond, sim):
    store, log = pond.open()
    pond.fill(log, 5)
    pond.sync(log)
    store.checkpoint()
    reader = log.read(0, 100).range
    job = store.delete(pond.tp)
    assert store.get(pond.tp) is None
    with pytest.raises(Refused):
        pond.append(log, b"x")
    again = store.create(pond.tp, UUID(int=9))
    assert again.end_offset == 0
    pond.fill(again, 2)
    pond.sync(again)
    assert reader.file.read_at(reader.position, 61)
    assert any(name.endswith("-delete") for name in sim.list("/data"))
    store.abandon()
    sim.crash()
    _, again = pond.open()
    assert (again.end_offset, again.topic_id) == (2, UUID(int=9)), "the old recovery point must not count"
    assert not any(name.endswith("-delete") for name in sim.list("/data"))
    job.run()


def test_what_belongs_to_nobody_is_set_aside(pond, sim):
    store, log = pond.open()
    pond.fill(log, 5)
    path = store.set_aside(pond.tp)
    assert store.get(pond.tp) is None
    assert sim.size(f"{path}/{0:020d}.log") > 0
    store.close()
    store = pond.store()
    assert not store.open(pond.now_ms).failed
    assert store.logs == {}
    assert sim.exists(path), "and stays there"


def test_a_damaged_checkpoint_means_that_everything_is_checked(pond, sim):
    store, log = pond.open()
    pond.fill(log, 5)
    store.close()
    sim.replace("/data/recovery-point-offset-checkpoint", b"nonsense")
    store = pond.store()
    report = store.open(pond.now_ms)
    assert not report.clean
    assert "checking everything" in report.notes[0]
    assert store.get(pond.tp).end_offset == 5


def test_a_failed_log_leaves_no_clean_marker(pond, sim):
    store, log = pond.open()
    pond.fill(log, 1)
    sim.fail_syncs(".log")
    store.close()
    assert log.failed is not None
    assert not sim.exists("/data/.kafka_cleanshutdown")


def test_leader_epochs_that_could_not_be_noted_leave_no_clean_marker(pond, sim):
    store, log = pond.open()
    pond.append(log, b"value", epoch=1)
    pond.sync(log)
    pond.append(log, b"value", epoch=2)
    sim.fail_opens("leader-epoch-checkpoint", code=errno.ENOSPC)
    store.close()
    assert log.failed is None
    assert not sim.exists("/data/.kafka_cleanshutdown")
    sim.heal()
    _, log = pond.open()
    assert log.epochs.entries == [(1, 0), (2, 1)]


def test_a_log_that_is_being_cut_back_leaves_no_clean_marker(pond, sim):
    store, log = pond.open()
    pond.fill(log, 5)
    log.begin_truncation(2)
    store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")


def test_strangers_in_the_folder_are_left_alone(pond, sim):
    sim.make_folder("/data/notes")
    sim.replace("/data/readme.txt", b"hello")
    store, _ = pond.open()
    assert list(store.logs) == [pond.tp]
    assert sim.read("/data/readme.txt") == b"hello"


def test_creation_and_deletion_survive_a_power_cut_at_every_operation(make_pond):
    def life(pond, state):
        store, log = pond.open()
        pond.fill(log, 2)
        pond.sync(log)
        state["safe"] = 2
        state["deleting"] = True
        job = store.delete(pond.tp)
        job.run()
        log = store.create(pond.tp, UUID(int=8))
        pond.fill(log, 1)
        pond.sync(log)
        state["again"] = True
        store.close()

    whole = make_pond()
    life(whole, {})
    for number in range(1, whole.disk.operations + 1):
        pond, state = make_pond(disk=SimDisk(number)), {}
        pond.disk.crash_at_operation(number)
        try:
            life(pond, state)
        except PowerCut:
            pond.disk.crash()
        store, log = pond.open()
        if state.get("again"):
            assert pond.values(log) == {0: b"value-0"}
        elif state.get("safe") and not state.get("deleting"):
            assert pond.values(log) == {0: b"value-0", 1: b"value-1"}
        pond.fill(log, 1, start=7)
        store.close()


def test_it_works_on_the_real_disk(make_pond, tmp_path):
    pond = make_pond(disk=RealDisk(), folder=str(tmp_path / "deep" / "data"), limits=LogLimits(segment_bytes=2000))
    store, log = pond.open()
    pond.fill(log, 200)
    pond.remove(log.retire(log.segments[:2]))
    expected = pond.values(log)
    store.close()
    store, log = pond.open()
    assert pond.values(log) == expected
    pond.fill(log, 50, start=200)
    expected = pond.values(log)
    store.abandon()
    store, log = pond.open()
    assert pond.values(log) == expected
    store.delete(pond.tp).run()
    store.close()


def test_a_name_is_not_free_while_a_sync_of_the_deleted_log_is_under_way(pond, sim):
    """The sync writes by name: it would say of the new log that it is the old topic's."""
    store, log = pond.open()
    pond.fill(log, 3)
    ticket = log.sync_target()
    job = store.delete(pond.tp)
    assert store.is_leaving(pond.tp)
    with pytest.raises(Refused, match="still being written"):
        store.create(pond.tp, UUID(int=9))
    assert not sim.exists(pond.partition)
    with pytest.raises(FileNotFoundError):
        ticket.run()
    log.fail(FileNotFoundError("gone"), ticket)
    again = store.create(pond.tp, UUID(int=9))
    assert not store.is_leaving(pond.tp)
    pond.sync(again)
    job.run()
    store.close()
    _, again = pond.open()
    assert again.topic_id == UUID(int=9)


def test_a_name_is_not_free_while_files_of_the_deleted_log_are_compacted(make_pond):
    limits = LogLimits(segment_bytes=500, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.01)
    pond = make_pond(limits=limits)
    store, log = pond.open()
    pond.fill(log, 20)
    plan = log.compaction_candidate(pond.now_ms)
    store.delete(pond.tp)
    assert store.is_leaving(pond.tp)
    job = log.give_up_compaction(plan)
    assert not store.is_leaving(pond.tp)
    assert not job.begin(), "the folder is another's by now"
    assert log.compaction.held == frozenset()


def test_files_of_a_deleted_log_are_not_looked_for_in_the_next_one_of_that_name(pond, sim):
    """A removal waits for a minute or so, and goes by names that the next log uses again."""
    store, log = pond.open()
    pond.fill(log, 40)
    waiting, running = log.retire(log.segments[:1]), log.retire(log.segments[:1])
    assert waiting.number
    assert running.begin()
    store.delete(pond.tp)
    assert store.is_leaving(pond.tp)
    running.end(is_done=False)
    again = store.create(pond.tp, UUID(int=9))
    assert not waiting.begin()
    assert sim.exists(again.segments.active.path(".log"))


def test_an_end_with_a_sync_under_way_is_no_clean_one(pond, sim):
    """Nobody knows yet how it will end, and a second sync would not be told of what it loses."""
    store, log = pond.open()
    pond.fill(log, 3)
    log.sync_target()
    store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")
    assert log.synced_offset == 0


def test_what_kept_a_partition_from_opening_may_pass(pond, sim):
    store, log = pond.open()
    pond.fill(log, 5)
    pond.sync(log)
    pond.delete_before(log, 2)
    store.close()
    sim.fail_reads(".log")
    sim.fail_reads(".index")
    store = pond.store()
    assert pond.tp in store.open(pond.now_ms).failed
    assert not store.damaged
    sim.heal()
    store.reopen(pond.tp, pond.limits, pond.now_ms)
    log = store.get(pond.tp)
    assert (log.start_offset, log.end_offset) == (2, 5)
    assert not store.failed


def test_damage_does_not_pass(pond, sim):
    store, log = pond.open()
    pond.fill(log, 5)
    store.close()
    sim.remove("/data/.kafka_cleanshutdown")
    sim.flip_bit(f"{pond.partition}/{0:020d}.log", 70)
    store = pond.store()
    assert pond.tp in store.open(pond.now_ms).failed
    assert store.damaged == {pond.tp}
    assert store.reopen(pond.tp, pond.limits, pond.now_ms) == []
    assert pond.tp in store.failed


# What is believed at the next start.


def filled(pond, **counts):
    """A store with partitions of so many synced records each."""
    store, _ = pond.open()
    for name, count in counts.items():
        log = store.create(TopicPartition(name, 0), UUID(int=len(name)))
        pond.fill(log, count)
        pond.sync(log)
        if count > 2:
            log.delete_before(2)
    store.checkpoint()
    return store


def test_a_start_that_is_broken_off_is_no_clean_end_and_forgets_nothing(pond, sim, monkeypatch):
    """A signal before the loop runs is an exception, and whoever could not start closes all the same."""
    filled(pond, aa=5, zz=5).abandon()
    noted = {name: sim.read(f"/data/{name}") for name in sim.list("/data") if name.endswith("-checkpoint")}
    assert b"zz 0 2" in noted["log-start-offset-checkpoint"]

    def interrupted(files, folder, *more):
        if folder.endswith("zz-0"):
            raise KeyboardInterrupt
        return open_log(files, folder, *more)

    monkeypatch.setattr("millpond.log.store.open_log", interrupted)
    store = pond.store()
    with pytest.raises(KeyboardInterrupt):
        store.open(pond.now_ms)
    store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")
    assert {name: sim.read(f"/data/{name}") for name in noted} == noted
    monkeypatch.undo()
    store = pond.store()
    assert not store.open(pond.now_ms).clean
    assert store.get(TopicPartition("zz", 0)).start_offset == 2


def test_an_end_that_nobody_vouches_for_is_no_clean_one(pond, sim):
    filled(pond).close(is_vouched=False)
    assert not sim.exists("/data/.kafka_cleanshutdown")
    pond.open()


def test_a_full_disk_at_the_end_leaves_the_folder_free_and_unmarked(pond, sim):
    store = filled(pond, other=4)
    pond.append(store.get(TopicPartition("other", 0)), b"x")
    sim.fail_opens("recovery-point-offset-checkpoint", code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")
    sim.heal()
    pond.open()


def test_a_checkpoint_that_is_being_written_may_name_a_deleted_partition(pond, sim):
    """The next partition of that name went by the start of the one before, and lost its first records in a crash."""
    store, log = pond.open()
    pond.fill(log, 5)
    pond.sync(log)
    log.delete_before(5)
    job = store.begin_checkpoint()
    store.delete(pond.tp)
    assert store.is_leaving(pond.tp)
    with pytest.raises(Refused):
        store.create(pond.tp, UUID(int=9))
    job.run()
    store.end_checkpoint(job)
    again = store.create(pond.tp, UUID(int=9))
    pond.fill(again, 6)
    pond.sync(again)
    store.abandon()
    _, again = pond.open()
    assert (again.start_offset, again.end_offset) == (0, 6)


@pytest.mark.parametrize("is_power_cut", [True, False])
def test_a_start_that_a_crash_has_taken_back_hides_nothing_later(pond, sim, is_power_cut):
    store, log = pond.open()
    pond.fill(log, 3)
    pond.sync(log)
    pond.fill(log, 3)
    pond.delete_before(log, 6)
    store.abandon()
    # As a power cut leaves it.
    log_file = f"{pond.partition}/{0:020d}.log"
    whole = sim.read(log_file)
    sim.replace(log_file, whole[: len(whole) // 2])
    store, log = pond.open()
    assert (log.start_offset, log.end_offset) == (3, 3)
    pond.fill(log, 4)
    pond.sync(log)
    store.abandon()
    if is_power_cut:
        sim.crash()
    _, log = pond.open()
    assert (log.start_offset, log.end_offset) == (3, 7)


def test_a_log_that_was_changed_after_a_clean_end_is_not_taken_at_its_word(pond, sim):
    store, log = pond.open()
    pond.fill(log, 2)
    pond.sync(log)
    old = sim.read(f"{pond.partition}/{0:020d}.log")
    pond.fill(log, 2)
    store.close()
    new = sim.read(f"{pond.partition}/{0:020d}.log")
    sim.replace(f"{pond.partition}/{0:020d}.log", old)
    store = pond.store()
    report = store.open(pond.now_ms)
    assert report.has_lost
    assert not report.clean
    assert "ends at offset 2, but all below 4" in report.failed[pond.tp]
    store.close()
    sim.replace(f"{pond.partition}/{0:020d}.log", new)
    _, log = pond.open()
    assert log.end_offset == 4


def test_a_folder_that_is_gone_after_a_clean_end_is_a_loss(pond, sim):
    filled(pond, other=4).close()
    sim.remove_folder("/data/other-0")
    store = pond.store()
    report = store.open(pond.now_ms)
    assert report.has_lost
    assert "other-0" in report.notes[0]
    store.checkpoint()
    store.abandon()
    store = pond.store()
    report = store.open(pond.now_ms)
    # A topic that was deleted just before a crash looks the same.
    assert (report.has_lost, store.missing) == (False, {TopicPartition("other", 0)})
    assert store.create(TopicPartition("other", 0), UUID(int=3)).end_offset == 0
    assert not store.missing
    store.close()
    assert not pond.store().open(pond.now_ms).has_lost


def test_a_log_that_has_lost_its_owner_is_a_loss(pond, sim):
    filled(pond, other=4).close()
    sim.remove("/data/other-0/partition.metadata")
    assert pond.store().open(pond.now_ms).has_lost


def test_files_that_nobody_could_take_away_do_not_become_those_of_the_next_log(pond, sim, monkeypatch):
    store, log = pond.open()
    pond.fill(log, 40)
    with monkeypatch.context() as patch:
        patch.setattr(sim, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "rename")))
        with pytest.raises(OSError, match="rename"):
            store.delete(pond.tp)
        with pytest.raises(Refused, match="rename"):
            store.create(pond.tp, UUID(int=9))
    again = store.create(pond.tp, UUID(int=9))
    pond.fill(again, 2)
    store.close()
    _, again = pond.open()
    assert len(pond.records(again)) == 2
    assert any(name.endswith("-stray") for name in sim.list("/data"))


def test_a_new_log_that_found_no_room_leaves_nothing_behind(pond, sim):
    store, _ = pond.open()
    sim.fail_opens("other-0/partition.metadata", times=1, code=errno.ENOSPC)
    with pytest.raises(Refused):
        store.create(TopicPartition("other", 0), UUID(int=9))
    store.create(TopicPartition("other", 0), UUID(int=9))
    assert not any("stray" in name for name in sim.list("/data"))


def test_a_deleted_folder_that_cannot_be_removed_keeps_nobody_from_starting(pond, sim, monkeypatch):
    store, _ = pond.open()
    store.create(TopicPartition("gone", 0), UUID(int=3))
    store.delete(TopicPartition("gone", 0))
    store.close()
    monkeypatch.setattr(sim, "remove_folder", lambda *_: (_ for _ in ()).throw(PermissionError("not ours")))
    report = pond.store().open(pond.now_ms)
    assert "not ours" in report.notes[0]
    assert report.clean


def test_what_was_written_just_before_a_crash_is_not_too_old_after_it(pond):
    """Records with old timestamps are as young as their append, which is noted only now and then."""
    store, log = pond.open()
    pond.append(log, b"old", timestamp=pond.now_ms - 10 * 86_400_000)
    store.abandon()
    pond.now_ms += 1_000
    store, log = pond.open()
    assert log.segments.active.appended_ms == pond.now_ms
    pond.sync(log)
    store.close()
    pond.now_ms += 1_000
    _, log = pond.open()
    assert log.segments.active.appended_ms == pond.now_ms - 1_000


def test_a_partition_that_cannot_be_opened_keeps_its_append_times(pond, sim):
    store, log = pond.open()
    pond.append(log, b"old", timestamp=pond.now_ms - 10 * 86_400_000)
    store.close()
    noted_ms, pond.now_ms = pond.now_ms, pond.now_ms + 1_000
    sim.fail_reads(".log")
    store = pond.store()
    assert pond.tp in store.open(pond.now_ms).failed
    sim.fail_opens("append-times-checkpoint.tmp", times=1, code=errno.ENOSPC)
    store.create(TopicPartition("other", 0), UUID(int=3)).append(
        pond.batch(b"x", timestamp=0), leader_epoch=0, now_ms=pond.now_ms
    )
    with pytest.raises(OSError, match="No space"):
        store.checkpoint()
    sim.heal()
    store.checkpoint()
    store.reopen(pond.tp, pond.limits, pond.now_ms)
    assert store.get(pond.tp).segments.active.appended_ms == noted_ms
    store.abandon()
    _, log = pond.open()
    assert log.segments.active.appended_ms == noted_ms


def test_a_cut_off_end_is_known_until_it_is_told(pond, sim):
    """A start that is killed before it has told has cut it off already, and the next one finds nothing wrong."""
    store, log = pond.open()
    pond.fill(log, 5)
    pond.sync(log)
    store.abandon()
    sim.flip_bit(f"{pond.partition}/{0:020d}.log", log.segments.active.size - 1)
    for _ in range(2):
        store = pond.store()
        report = store.open(pond.now_ms)
        assert report.has_lost
        assert store.get(pond.tp).end_offset == 4
        store.abandon()
    store = pond.store()
    store.open(pond.now_ms)
    store.forget_loss()
    store.close()
    assert not pond.store().open(pond.now_ms).has_lost
