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


def test_only_one_process_uses_a_folder(harness):
    store, _ = harness.open()
    with pytest.raises(FolderInUse, match="another process"):
        harness.store().open(harness.now_ms)
    store.close()
    harness.open()


def test_a_clean_end_is_believed_once(harness, sim):
    store, log = harness.open()
    harness.fill(log, 3)
    store.close()
    assert sim.exists("/data/.kafka_cleanshutdown")
    store = harness.store()
    assert store.open(harness.now_ms).clean
    assert not sim.exists("/data/.kafka_cleanshutdown")
    store.abandon()
    assert not harness.store().open(harness.now_ms).clean


def test_the_files_are_those_that_kafka_has(harness, sim):
    store, log = harness.open()
    harness.fill(log, 20)
    harness.delete_before(log, 2)
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
    names = sim.list(harness.partition)
    for base in log.segments.bases:
        assert {f"{base:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= set(names)
    assert {"leader-epoch-checkpoint", "partition.metadata", f"{20:020d}.snapshot"} <= set(names)


def test_one_partition_that_cannot_be_opened_does_not_keep_the_others(harness, sim):
    store, log = harness.open()
    other = store.create(TopicPartition("other", 1), UUID(int=2))
    for each in (log, other):
        harness.fill(each, 3)
        harness.sync(each)
    store.checkpoint()
    store.abandon()
    sim.flip_bit(f"/data/other-1/{0:020d}.log", 70)
    store = harness.store()
    report = store.open(harness.now_ms)
    assert list(report.failed) == [TopicPartition("other", 1)]
    assert store.get(harness.tp).end_offset == 3
    store.checkpoint()
    assert b"other 1 3" in sim.read("/data/recovery-point-offset-checkpoint"), "what is known of it stays known"
    store.delete(TopicPartition("other", 1)).run()
    fresh = store.create(TopicPartition("other", 1), UUID(int=3))
    assert fresh.end_offset == 0


def test_a_deleted_partition_is_gone_and_its_name_is_free(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    store.checkpoint()
    reader = log.read(0, 100).range
    job = store.delete(harness.tp)
    assert store.get(harness.tp) is None
    with pytest.raises(Refused):
        harness.append(log, b"x")
    again = store.create(harness.tp, UUID(int=9))
    assert again.end_offset == 0
    harness.fill(again, 2)
    harness.sync(again)
    assert reader.file.read_at(reader.position, 61)
    assert any(name.endswith("-delete") for name in sim.list("/data"))
    store.abandon()
    sim.crash()
    _, again = harness.open()
    assert (again.end_offset, again.topic_id) == (2, UUID(int=9)), "the old recovery point must not count"
    assert not any(name.endswith("-delete") for name in sim.list("/data"))
    job.run()


def test_a_stray_partition_is_set_aside(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    path = store.set_aside(harness.tp)
    assert store.get(harness.tp) is None
    assert sim.size(f"{path}/{0:020d}.log") > 0
    store.close()
    store = harness.store()
    assert not store.open(harness.now_ms).failed
    assert store.logs == {}
    assert sim.exists(path), "and stays there"


def test_a_damaged_checkpoint_means_that_everything_is_checked(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    store.close()
    sim.replace("/data/recovery-point-offset-checkpoint", b"nonsense")
    store = harness.store()
    report = store.open(harness.now_ms)
    assert not report.clean
    assert "checking everything" in report.notes[0]
    assert store.get(harness.tp).end_offset == 5


def test_a_failed_log_leaves_no_clean_marker(harness, sim):
    store, log = harness.open()
    harness.fill(log, 1)
    sim.fail_syncs(".log")
    store.close()
    assert log.failed is not None
    assert not sim.exists("/data/.kafka_cleanshutdown")


def test_leader_epochs_that_could_not_be_noted_leave_no_clean_marker(harness, sim):
    store, log = harness.open()
    harness.append(log, b"value", epoch=1)
    harness.sync(log)
    harness.append(log, b"value", epoch=2)
    sim.fail_opens("leader-epoch-checkpoint", code=errno.ENOSPC)
    store.close()
    assert log.failed is None
    assert not sim.exists("/data/.kafka_cleanshutdown")
    sim.heal()
    _, log = harness.open()
    assert log.epochs.entries == [(1, 0), (2, 1)]


def test_a_log_that_is_being_cut_back_leaves_no_clean_marker(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    log.begin_truncation(2)
    store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")


def test_strangers_in_the_folder_are_left_alone(harness, sim):
    sim.make_folder("/data/notes")
    sim.replace("/data/readme.txt", b"hello")
    store, _ = harness.open()
    assert list(store.logs) == [harness.tp]
    assert sim.read("/data/readme.txt") == b"hello"


def test_creation_and_deletion_survive_a_power_cut_at_every_operation(make_pond):
    def life(harness, state):
        store, log = harness.open()
        harness.fill(log, 2)
        harness.sync(log)
        state["safe"] = 2
        state["deleting"] = True
        job = store.delete(harness.tp)
        job.run()
        log = store.create(harness.tp, UUID(int=8))
        harness.fill(log, 1)
        harness.sync(log)
        state["again"] = True
        store.close()

    whole = make_pond()
    life(whole, {})
    for number in range(1, whole.disk.operations + 1):
        harness, state = make_pond(disk=SimDisk(number)), {}
        harness.disk.crash_at_operation(number)
        try:
            life(harness, state)
        except PowerCut:
            harness.disk.crash()
        store, log = harness.open()
        if state.get("again"):
            assert harness.values(log) == {0: b"value-0"}
        elif state.get("safe") and not state.get("deleting"):
            assert harness.values(log) == {0: b"value-0", 1: b"value-1"}
        harness.fill(log, 1, start=7)
        store.close()


def test_it_works_on_the_real_disk(make_pond, tmp_path):
    harness = make_pond(disk=RealDisk(), folder=str(tmp_path / "deep" / "data"), limits=LogLimits(segment_bytes=2000))
    store, log = harness.open()
    harness.fill(log, 200)
    harness.remove(log.retire(log.segments[:2]))
    expected = harness.values(log)
    store.close()
    store, log = harness.open()
    assert harness.values(log) == expected
    harness.fill(log, 50, start=200)
    expected = harness.values(log)
    store.abandon()
    store, log = harness.open()
    assert harness.values(log) == expected
    store.delete(harness.tp).run()
    store.close()


def test_a_name_is_not_free_while_a_sync_of_the_deleted_log_is_under_way(harness, sim):
    """The sync writes by name: it would say of the new log that it is the old topic's."""
    store, log = harness.open()
    harness.fill(log, 3)
    ticket = log.sync_target()
    job = store.delete(harness.tp)
    assert store.is_leaving(harness.tp)
    with pytest.raises(Refused, match="still being written"):
        store.create(harness.tp, UUID(int=9))
    assert not sim.exists(harness.partition)
    with pytest.raises(FileNotFoundError):
        ticket.run()
    log.fail(FileNotFoundError("gone"), ticket)
    again = store.create(harness.tp, UUID(int=9))
    assert not store.is_leaving(harness.tp)
    harness.sync(again)
    job.run()
    store.close()
    _, again = harness.open()
    assert again.topic_id == UUID(int=9)


def test_a_name_is_not_free_while_files_of_the_deleted_log_are_compacted(make_pond):
    limits = LogLimits(segment_bytes=500, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.01)
    harness = make_pond(limits=limits)
    store, log = harness.open()
    harness.fill(log, 20)
    plan = log.compaction_candidate(harness.now_ms)
    store.delete(harness.tp)
    assert store.is_leaving(harness.tp)
    job = log.give_up_compaction(plan)
    assert not store.is_leaving(harness.tp)
    assert not job.begin(), "the folder is another's by now"
    assert log.compaction.held == frozenset()


def test_files_of_a_deleted_log_are_not_looked_for_in_the_next_one_of_that_name(harness, sim):
    """A removal waits for a minute or so, and goes by names that the next log uses again."""
    store, log = harness.open()
    harness.fill(log, 40)
    waiting, running = log.retire(log.segments[:1]), log.retire(log.segments[:1])
    assert waiting.number
    assert running.begin()
    store.delete(harness.tp)
    assert store.is_leaving(harness.tp)
    running.end(is_done=False)
    again = store.create(harness.tp, UUID(int=9))
    assert not waiting.begin()
    assert sim.exists(again.segments.active.path(".log"))


def test_an_end_with_a_sync_under_way_is_no_clean_one(harness, sim):
    """Nobody knows yet how it will end, and a second sync would not be told of what it loses."""
    store, log = harness.open()
    harness.fill(log, 3)
    log.sync_target()
    store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")
    assert log.synced_offset == 0


def test_what_kept_a_partition_from_opening_may_pass(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    harness.delete_before(log, 2)
    store.close()
    sim.fail_reads(".log")
    sim.fail_reads(".index")
    store = harness.store()
    assert harness.tp in store.open(harness.now_ms).failed
    assert not store.damaged
    sim.heal()
    store.reopen(harness.tp, harness.limits, harness.now_ms)
    log = store.get(harness.tp)
    assert (log.start_offset, log.end_offset) == (2, 5)
    assert not store.failed


def test_damage_does_not_pass(harness, sim):
    store, log = harness.open()
    harness.fill(log, 5)
    store.close()
    sim.remove("/data/.kafka_cleanshutdown")
    sim.flip_bit(f"{harness.partition}/{0:020d}.log", 70)
    store = harness.store()
    assert harness.tp in store.open(harness.now_ms).failed
    assert store.damaged == {harness.tp}
    assert store.reopen(harness.tp, harness.limits, harness.now_ms) == []
    assert harness.tp in store.failed


# What is believed at the next start.


def filled(harness, **counts):
    """A store with partitions of so many synced records each."""
    store, _ = harness.open()
    for name, count in counts.items():
        log = store.create(TopicPartition(name, 0), UUID(int=len(name)))
        harness.fill(log, count)
        harness.sync(log)
        if count > 2:
            log.delete_before(2)
    store.checkpoint()
    return store


def test_a_start_that_is_broken_off_is_no_clean_end_and_forgets_nothing(harness, sim, monkeypatch):
    """A signal before the loop runs raises an exception, and a store that could not start is closed all the same."""
    filled(harness, aa=5, zz=5).abandon()
    noted = {name: sim.read(f"/data/{name}") for name in sim.list("/data") if name.endswith("-checkpoint")}
    assert b"zz 0 2" in noted["log-start-offset-checkpoint"]

    def interrupted(files, folder, *more):
        if folder.endswith("zz-0"):
            raise KeyboardInterrupt
        return open_log(files, folder, *more)

    monkeypatch.setattr("millpond.log.store.open_log", interrupted)
    store = harness.store()
    with pytest.raises(KeyboardInterrupt):
        store.open(harness.now_ms)
    store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")
    assert {name: sim.read(f"/data/{name}") for name in noted} == noted
    monkeypatch.undo()
    store = harness.store()
    assert not store.open(harness.now_ms).clean
    assert store.get(TopicPartition("zz", 0)).start_offset == 2


def test_a_shutdown_that_is_not_vouched_for_is_not_clean(harness, sim):
    filled(harness).close(is_vouched=False)
    assert not sim.exists("/data/.kafka_cleanshutdown")
    harness.open()


def test_a_full_disk_at_the_end_leaves_the_folder_free_and_unmarked(harness, sim):
    store = filled(harness, other=4)
    harness.append(store.get(TopicPartition("other", 0)), b"x")
    sim.fail_opens("recovery-point-offset-checkpoint", code=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        store.close()
    assert not sim.exists("/data/.kafka_cleanshutdown")
    sim.heal()
    harness.open()


def test_a_checkpoint_that_is_being_written_may_name_a_deleted_partition(harness, sim):
    """The next partition of that name went by the start of the one before, and lost its first records in a crash."""
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    log.delete_before(5)
    job = store.begin_checkpoint()
    store.delete(harness.tp)
    assert store.is_leaving(harness.tp)
    with pytest.raises(Refused):
        store.create(harness.tp, UUID(int=9))
    job.run()
    store.end_checkpoint(job)
    again = store.create(harness.tp, UUID(int=9))
    harness.fill(again, 6)
    harness.sync(again)
    store.abandon()
    _, again = harness.open()
    assert (again.start_offset, again.end_offset) == (0, 6)


@pytest.mark.parametrize("is_power_cut", [True, False])
def test_a_start_that_a_crash_has_taken_back_hides_nothing_later(harness, sim, is_power_cut):
    store, log = harness.open()
    harness.fill(log, 3)
    harness.sync(log)
    harness.fill(log, 3)
    harness.delete_before(log, 6)
    store.abandon()
    # As a power cut leaves it.
    log_file = f"{harness.partition}/{0:020d}.log"
    whole = sim.read(log_file)
    sim.replace(log_file, whole[: len(whole) // 2])
    store, log = harness.open()
    assert (log.start_offset, log.end_offset) == (3, 3)
    harness.fill(log, 4)
    harness.sync(log)
    store.abandon()
    if is_power_cut:
        sim.crash()
    _, log = harness.open()
    assert (log.start_offset, log.end_offset) == (3, 7)


def test_a_log_that_was_changed_after_a_clean_end_is_not_taken_at_its_word(harness, sim):
    store, log = harness.open()
    harness.fill(log, 2)
    harness.sync(log)
    old = sim.read(f"{harness.partition}/{0:020d}.log")
    harness.fill(log, 2)
    store.close()
    new = sim.read(f"{harness.partition}/{0:020d}.log")
    sim.replace(f"{harness.partition}/{0:020d}.log", old)
    store = harness.store()
    report = store.open(harness.now_ms)
    assert report.has_lost
    assert not report.clean
    assert "ends at offset 2, but everything below 4" in report.failed[harness.tp]
    store.close()
    sim.replace(f"{harness.partition}/{0:020d}.log", new)
    _, log = harness.open()
    assert log.end_offset == 4


def test_a_folder_that_is_gone_after_a_clean_end_is_a_loss(harness, sim):
    filled(harness, other=4).close()
    sim.remove_folder("/data/other-0")
    store = harness.store()
    report = store.open(harness.now_ms)
    assert report.has_lost
    assert "other-0" in report.notes[0]
    store.checkpoint()
    store.abandon()
    store = harness.store()
    report = store.open(harness.now_ms)
    # A topic that was deleted just before a crash looks the same.
    assert (report.has_lost, store.missing) == (False, {TopicPartition("other", 0)})
    assert store.create(TopicPartition("other", 0), UUID(int=3)).end_offset == 0
    assert not store.missing
    store.close()
    assert not harness.store().open(harness.now_ms).has_lost


def test_a_log_that_has_lost_its_owner_is_a_loss(harness, sim):
    filled(harness, other=4).close()
    sim.remove("/data/other-0/partition.metadata")
    assert harness.store().open(harness.now_ms).has_lost


def test_files_that_could_not_be_removed_are_not_adopted_by_the_next_log(harness, sim, monkeypatch):
    store, log = harness.open()
    harness.fill(log, 40)
    with monkeypatch.context() as patch:
        patch.setattr(sim, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "rename")))
        with pytest.raises(OSError, match="rename"):
            store.delete(harness.tp)
        with pytest.raises(Refused, match="rename"):
            store.create(harness.tp, UUID(int=9))
    again = store.create(harness.tp, UUID(int=9))
    harness.fill(again, 2)
    store.close()
    _, again = harness.open()
    assert len(harness.records(again)) == 2
    assert any(name.endswith("-stray") for name in sim.list("/data"))


def test_a_new_log_that_found_no_room_leaves_nothing_behind(harness, sim):
    store, _ = harness.open()
    sim.fail_opens("other-0/partition.metadata", times=1, code=errno.ENOSPC)
    with pytest.raises(Refused):
        store.create(TopicPartition("other", 0), UUID(int=9))
    store.create(TopicPartition("other", 0), UUID(int=9))
    assert not any("stray" in name for name in sim.list("/data"))


def test_a_deleted_folder_that_cannot_be_removed_does_not_prevent_startup(harness, sim, monkeypatch):
    store, _ = harness.open()
    store.create(TopicPartition("gone", 0), UUID(int=3))
    store.delete(TopicPartition("gone", 0))
    store.close()
    monkeypatch.setattr(sim, "remove_folder", lambda *_: (_ for _ in ()).throw(PermissionError("not ours")))
    report = harness.store().open(harness.now_ms)
    assert "not ours" in report.notes[0]
    assert report.clean


def test_what_was_written_just_before_a_crash_is_not_too_old_after_it(harness):
    """Records with old timestamps are as young as their append, which is noted only now and then."""
    store, log = harness.open()
    harness.append(log, b"old", timestamp=harness.now_ms - 10 * 86_400_000)
    store.abandon()
    harness.now_ms += 1_000
    store, log = harness.open()
    assert log.segments.active.appended_ms == harness.now_ms
    harness.sync(log)
    store.close()
    harness.now_ms += 1_000
    _, log = harness.open()
    assert log.segments.active.appended_ms == harness.now_ms - 1_000


def test_a_partition_that_cannot_be_opened_keeps_its_append_times(harness, sim):
    store, log = harness.open()
    harness.append(log, b"old", timestamp=harness.now_ms - 10 * 86_400_000)
    store.close()
    noted_ms, harness.now_ms = harness.now_ms, harness.now_ms + 1_000
    sim.fail_reads(".log")
    store = harness.store()
    assert harness.tp in store.open(harness.now_ms).failed
    sim.fail_opens("append-times-checkpoint.tmp", times=1, code=errno.ENOSPC)
    store.create(TopicPartition("other", 0), UUID(int=3)).append(
        harness.batch(b"x", timestamp=0), leader_epoch=0, now_ms=harness.now_ms
    )
    with pytest.raises(OSError, match="No space"):
        store.checkpoint()
    sim.heal()
    store.checkpoint()
    store.reopen(harness.tp, harness.limits, harness.now_ms)
    assert store.get(harness.tp).segments.active.appended_ms == noted_ms
    store.abandon()
    _, log = harness.open()
    assert log.segments.active.appended_ms == noted_ms


def test_a_cut_off_tail_is_remembered_until_it_is_reported(harness, sim):
    """A start that is killed before it has told has cut it off already, and the next one finds nothing wrong."""
    store, log = harness.open()
    harness.fill(log, 5)
    harness.sync(log)
    store.abandon()
    sim.flip_bit(f"{harness.partition}/{0:020d}.log", log.segments.active.size - 1)
    for _ in range(2):
        store = harness.store()
        report = store.open(harness.now_ms)
        assert report.has_lost
        assert store.get(harness.tp).end_offset == 4
        store.abandon()
    store = harness.store()
    store.open(harness.now_ms)
    store.forget_loss()
    store.close()
    assert not harness.store().open(harness.now_ms).has_lost
