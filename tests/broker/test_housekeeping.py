"""Periodic work: it happens as time passes, and stops on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tests.support.partitions import ME, partition_context, view

from millpond.base.ids import TopicPartition
from millpond.broker import housekeeping
from millpond.broker.housekeeping import REMOVE_AGAIN_MS, RETIRED_AT_ONCE, SWEEP_MS, Housekeeping
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.broker.storage.flusher import Flusher
from millpond.config.node import node_settings
from millpond.log.limits import LogLimits
from millpond.log.removal import RemovalJob
from millpond.log.store import LogStore
from millpond.sim.world.disk import SimDisk
from millpond.sim.world.world import SimWorld
from millpond.wire.batch import walk
from millpond.wire.records import decode_batch

RETENTION_MS, CHECKPOINT_MS, COMPACTION_MS = 300_000, 60_000, 15_000
HOUR_MS = 3_600_000
WORKERS_MS = 20
"""Longer than a worker's job takes."""

SMALL = LogLimits(segment_bytes=80)
COMPACT = LogLimits(segment_bytes=80, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.1)


class HousekeepingHost:
    def __init__(self, make_batch: Callable[..., memoryview]) -> None:
        self.sim = SimWorld()
        self.world = self.sim.start("node")
        self.disk = self.sim.hosts["node"].disk
        self.store = LogStore(self.world.disk, "/data", LogLimits(), self.world.entropy)
        self.store.open(self.world.clock.wall_ms())
        self.partitions = Partitions()
        self.journal: list[str] = []
        self.sweeps = 0
        self.texts: dict[str, str] = {
            "log.retention.check.interval.ms": str(RETENTION_MS),
            "log.flush.offset.checkpoint.interval.ms": str(CHECKPOINT_MS),
            "log.cleaner.backoff.ms": str(COMPACTION_MS),
        }
        self.keeping = Housekeeping(
            clock=self.world.clock,
            workers=self.world.workers,
            settings=lambda: node_settings(self.texts),
            partitions=self.partitions,
            store=self.store,
            flusher=Flusher(self.world.workers, self.world.disk, self.store.folder),
            checkpoints=CheckpointWriter(self.store, self.world.workers),
            sweeps=(self._sweep,),
            note_high_watermarks=lambda: None,
            journal=self._write,
        )
        self.keeping.start()
        self.make_batch = make_batch

    def _sweep(self) -> None:
        self.sweeps += 1

    def _write(self, event: str, **facts: Any) -> None:
        self.journal.append(f"{event} {facts.get('partition') or facts.get('folder') or ''}".strip())

    def make(self, topic: str, limits: LogLimits) -> Partition:
        name = TopicPartition(topic, 0)
        topic_id = UUID(int=len(self.partitions) + 1)
        log = self.store.create(name, topic_id, limits)
        context = partition_context(self.world.disk, self.world.clock, flush=self.keeping.flush)
        made = Partition(name, topic_id, log, context)
        made.apply_metadata(view(ME, 0, 0))
        self.partitions.add(made)
        return made

    def append(self, partition: Partition, *keys: bytes) -> None:
        """One record for each key, each in its own batch."""
        for key in keys:
            now_ms = self.world.clock.wall_ms()
            partition.append(self.make_batch(b"v", key=key, timestamp=now_ms), zstd=True)

    def append_safely(self, partition: Partition, *keys: bytes) -> None:
        """Append, and sync."""
        self.append(partition, *keys)
        ticket = partition.log.sync_target()
        ticket.run()
        partition.log.synced(ticket)

    def run(self, duration_ms: int) -> None:
        self.sim.run_for(duration_ms)

    def segment_files(self, partition: Partition) -> int:
        return sum(".log" in name for name in self.disk.list(partition.log.folder))

    def recovery_points(self) -> str:
        path = "/data/recovery-point-offset-checkpoint"
        return self.disk.read(path).decode() if self.disk.exists(path) else ""

    def keys(self, partition: Partition) -> list[tuple[int, bytes | None]]:
        log = partition.log
        result: list[tuple[int, bytes | None]] = []
        offset: int = log.start_offset
        while data := log.read_batches(offset, 1 << 20):
            for position, header in walk(data):
                result += [(record.offset, record.key) for record in decode_batch(data, position)]
                offset = header.next_offset
        return result


@pytest.fixture
def host(make_batch: Callable[..., memoryview]) -> HousekeepingHost:
    return HousekeepingHost(make_batch)


# Turns.


def test_connections_are_looked_at_every_second(host: HousekeepingHost) -> None:
    host.run(5 * SWEEP_MS)
    assert host.sweeps == 5


def test_a_changed_interval_counts_from_the_next_turn_on(host: HousekeepingHost) -> None:
    partition = host.make("pond", SMALL)
    host.append(partition, b"a")
    host.texts["log.flush.offset.checkpoint.interval.ms"] = "10"
    host.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert "pond 0 1" in host.recovery_points()
    host.append(partition, b"b")
    host.run(10 + WORKERS_MS)
    assert "pond 0 2" in host.recovery_points()


def test_nothing_happens_after_the_end(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(flush_ms=1, retention_ms=1))
    host.append(partition, b"a")
    host.keeping.stop()
    host.run(2 * RETENTION_MS)
    assert (host.sweeps, host.journal, host.recovery_points()) == (0, [], "")
    assert partition.log.synced_offset == 0
    assert partition.log.start_offset == 0


# Flushing by age.


def test_a_log_is_flushed_once_it_has_been_dirty_for_long_enough(host: HousekeepingHost) -> None:
    eager, lazy = host.make("eager", LogLimits(flush_ms=3_000)), host.make("lazy", LogLimits())
    host.run(500)
    host.append(eager, b"a")
    host.append(lazy, b"a")
    host.run(500 + 2 * SWEEP_MS + WORKERS_MS)
    assert eager.log.synced_offset == 0
    host.run(2 * SWEEP_MS + WORKERS_MS)
    assert (eager.log.synced_offset, lazy.log.synced_offset) == (1, 0)


def test_a_log_that_is_always_dirty_is_flushed_at_its_own_pace(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(flush_ms=10_000))
    for _ in range(60):
        host.append(partition, b"a")
        host.run(500)
    syncs = sum(" sync " in line and "pond-0" in line and ".log" in line for line in host.disk.trace)
    assert 2 <= syncs <= 3, "in thirty seconds"


# Retention.


def test_old_segments_go_first_from_the_log_and_later_from_the_disk(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(segment_bytes=80, retention_bytes=100, file_delete_delay_ms=1_000))
    host.append(partition, b"a", b"b", b"c", b"d")
    assert host.segment_files(partition) == 4
    host.run(RETENTION_MS)
    assert partition.log.start_offset == 2
    assert host.journal == ["segments deleted by retention pond-0"]
    assert host.segment_files(partition) == 4, "readers have time to finish"
    host.run(1_000 + WORKERS_MS)
    assert host.segment_files(partition) == 2
    assert [key for _, key in host.keys(partition)] == [b"c", b"d"]


def test_time_takes_even_the_last_segment(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(retention_ms=1_000, file_delete_delay_ms=0))
    host.append(partition, b"a")
    host.run(RETENTION_MS + WORKERS_MS)
    assert (partition.log.start_offset, partition.log.end_offset) == (1, 1)
    assert host.segment_files(partition) == 1
    host.append(partition, b"b")
    assert host.keys(partition) == [(1, b"b")]


def test_what_the_last_life_did_not_come_to_remove_is_removed(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(segment_bytes=80, file_delete_delay_ms=1_000))
    host.append(partition, b"a", b"b", b"c", b"d")
    partition.log.retire(partition.log.segments[:2])
    # As after opening the log.
    partition.log.durability.away.asked = 0
    host.run(RETENTION_MS)
    assert host.segment_files(partition) == 4
    host.run(1_000 + WORKERS_MS)
    assert host.segment_files(partition) == 2
    assert host.journal == []


def test_a_removal_that_keeps_failing_is_one(host: HousekeepingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = host.make("pond", replace(SMALL, retention_ms=1_000))
    host.append_safely(partition, b"a", b"b", b"c")

    def remove(disk: SimDisk, path: str) -> None:
        raise OSError("broken")

    monkeypatch.setattr(SimDisk, "remove", remove)
    host.run(HOUR_MS)
    assert 50 <= host.journal.count(f"removal failed {partition.log.folder}") <= 60


def test_a_removal_that_waits_for_long_is_one(host: HousekeepingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = host.make("pond", replace(SMALL, retention_ms=1_000, file_delete_delay_ms=24 * 3_600_000))
    host.append_safely(partition, b"a", b"b", b"c")
    asked: list[object] = []
    monkeypatch.setattr(host.keeping, "remove_later", asked.append)
    host.run(HOUR_MS)
    assert len(asked) == 1


def test_a_clock_that_is_set_back_between_two_turns_deletes_nothing(host: HousekeepingHost) -> None:
    """The records are old but were just written: retention uses the write time, which moves with the clock."""
    old, new = (host.make(name, replace(SMALL, retention_ms=12 * HOUR_MS)) for name in ("old", "new"))
    host.run(1_000)
    for partition in (old, new):
        for key in (b"a", b"b", b"c"):
            stamp = host.world.clock.wall_ms() - 48 * HOUR_MS
            partition.append(host.make_batch(b"v", key=key, timestamp=stamp), zstd=True)
    old.log.segments[0].appended_ms -= 24 * HOUR_MS
    steps = host.keeping._retain_all()
    next(steps)
    assert old.log.start_offset == 1
    host.sim.clock.jump_wall(-24 * HOUR_MS)
    host.keeping.compact()
    for _ in steps:
        pass
    assert new.log.start_offset == 0


def test_many_segments_go_some_in_each_turn_and_their_files_in_one_job(host: HousekeepingHost) -> None:
    count = 3 * RETIRED_AT_ONCE
    partition = host.make("pond", LogLimits(segment_bytes=80, retention_ms=1_000, file_delete_delay_ms=1_000))
    for _ in range(count):
        host.append_safely(partition, b"k")
    log = partition.log
    starts: list[int] = []
    retire = log.retire
    log.retire = lambda segments: (starts.append(log.start_offset), retire(segments))[1]  # type: ignore[method-assign]
    assert host.sim.run_until(lambda: bool(starts), within_ms=RETENTION_MS)
    assert (starts, log.start_offset) == ([0], RETIRED_AT_ONCE), "one portion, then the others have their turn"
    host.run(0)
    assert (starts, log.start_offset) == ([0, RETIRED_AT_ONCE, 2 * RETIRED_AT_ONCE], count)
    assert host.journal == ["segments deleted by retention pond-0"]
    jobs: list[Any] = []
    run = host.world.workers.run

    def noting(job: Any) -> Any:
        jobs.append(job.__self__)
        return run(job)

    host.world.workers.run = noting  # type: ignore[method-assign]
    host.run(1_000 + 100 * WORKERS_MS)
    assert sum(isinstance(job, RemovalJob) for job in jobs) == 1, (
        "two at once could take the middle before the beginning"
    )
    assert host.segment_files(partition) == 1


def test_the_end_comes_while_segments_go(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(segment_bytes=80, retention_ms=1_000))
    for _ in range(2 * RETIRED_AT_ONCE):
        host.append_safely(partition, b"k")
    assert host.sim.run_until(lambda: partition.log.start_offset > 0, within_ms=RETENTION_MS)
    host.keeping.stop()
    host.run(RETENTION_MS)
    assert partition.log.start_offset == RETIRED_AT_ONCE
    assert host.journal == []


def test_many_logs_are_looked_at_some_in_each_turn(host: HousekeepingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is deleted before its turn is skipped."""
    monkeypatch.setattr(housekeeping, "LOOKS_AT_ONCE", 2)
    looked: list[str] = []
    partitions = [host.make(name, COMPACT) for name in "abcde"]
    for partition in partitions:
        for ask in ("expired_segments", "compaction_candidate"):

            def look(*_: Any, name: str = partition.name.topic, ask: str = ask) -> Any:
                looked.append(f"{ask} {name}")
                return [] if ask == "expired_segments" else None

            setattr(partition.log, ask, look)
    for ask, interval_ms in (("compaction_candidate", COMPACTION_MS), ("expired_segments", RETENTION_MS)):
        looked.clear()
        assert host.sim.run_until(lambda ask=ask: f"{ask} a" in looked, within_ms=interval_ms)  # type: ignore[misc]
        assert [line for line in looked if ask in line] == [f"{ask} a", f"{ask} b"]
        last = list(host.partitions)[-1]
        host.partitions.remove(last)
        host.run(0)
        rest = [partition.name.topic for partition in host.partitions]
        assert [line for line in looked if ask in line] == [f"{ask} {name}" for name in rest]


def test_a_clock_that_leaps_ahead_deletes_nothing(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(retention_ms=3_600_000))
    host.append(partition, b"a")
    host.run(RETENTION_MS)
    host.sim.clock.jump_wall(7 * 24 * 3_600_000)
    host.run(RETENTION_MS)
    assert partition.log.start_offset == 0


def test_one_log_that_cannot_be_cut_does_not_keep_the_others_from_it(host: HousekeepingHost) -> None:
    limits = LogLimits(retention_ms=1_000)
    for name in ("a", "bad", "c"):
        host.append(host.make(name, limits), b"k")
    bad = host.partitions.get("bad", 0)
    assert bad is not None
    bad.log.retire = lambda _: (_ for _ in ()).throw(OSError("broken"))  # type: ignore[assignment]
    host.run(RETENTION_MS)
    assert host.journal == [
        "segments deleted by retention a-0",
        "retention failed bad-0",
        "segments deleted by retention c-0",
    ]


def test_a_log_that_has_failed_is_left_as_it_is(host: HousekeepingHost) -> None:
    partition = host.make("pond", LogLimits(retention_ms=1_000))
    host.append(partition, b"a")
    partition.log.fail(OSError("broken"))
    host.run(RETENTION_MS)
    assert (partition.log.start_offset, host.journal) == (0, [])


def test_a_removal_that_fails_is_told_and_one_that_is_not_wanted_any_more_is_not_begun(
    host: HousekeepingHost,
) -> None:
    class Job:
        delay_ms = 5

        def __init__(self, wanted: bool, is_tried_again: bool = True) -> None:
            self.wanted = wanted
            self.folder = "/data/pond-0"
            self.is_tried_again = is_tried_again
            self.steps: list[str] = []

        def begin(self) -> bool:
            return self.wanted

        def run(self) -> None:
            self.steps.append("run")
            raise OSError("broken")

        def end(self, *, is_done: bool) -> None:
            self.steps.append(f"end {is_done}")

    jobs = [Job(True), Job(False), Job(True, is_tried_again=False)]
    for job in jobs:
        host.keeping.remove_later(job)
    host.run(5 + WORKERS_MS)
    assert host.journal == ["removal failed /data/pond-0"] * 2
    assert [job.steps for job in jobs] == [["run", "end False"], [], ["run", "end False"]]
    host.run(REMOVE_AGAIN_MS + WORKERS_MS)
    assert [job.steps for job in jobs] == [["run", "end False"] * 2, [], ["run", "end False"]]


# Checkpoints.


def test_a_checkpoint_syncs_records_without_waiters(host: HousekeepingHost) -> None:
    partitions = [host.make(name, SMALL) for name in ("a", "b")]
    for partition in partitions:
        host.append(partition, b"k")
    host.run(CHECKPOINT_MS)
    assert host.recovery_points() == "", "not before the disk is sure"
    host.run(2 * WORKERS_MS)
    assert [each.log.synced_offset for each in partitions] == [1, 1]
    assert "a 0 1" in host.recovery_points()
    assert "b 0 1" in host.recovery_points()


def test_a_failed_log_does_not_keep_the_others_from_their_checkpoint(host: HousekeepingHost) -> None:
    bad, good = host.make("bad", SMALL), host.make("good", SMALL)
    for partition in (bad, good):
        host.append(partition, b"k")
    host.disk.fail_syncs("/bad-0/", times=None)
    host.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert bad.log.failed is not None
    assert "good 0 1" in host.recovery_points()
    assert "bad 0 0" in host.recovery_points()


def test_a_checkpoint_that_cannot_be_written_is_told_and_tried_again(host: HousekeepingHost) -> None:
    host.append(host.make("pond", SMALL), b"k")
    host.disk.fail_syncs("recovery-point", times=1)
    host.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert host.journal == ["checkpoint failed"]
    host.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert "pond 0 1" in host.recovery_points()


# Compaction.


def test_what_is_not_safe_yet_is_not_compacted(host: HousekeepingHost) -> None:
    partition = host.make("pond", COMPACT)
    host.append_safely(partition, b"a", b"b")
    host.append(partition, b"a", b"b", b"a", b"b", b"c")
    host.run(2 * COMPACTION_MS)
    assert host.keys(partition)[:2] == [(0, b"a"), (1, b"b")]


def test_compaction_keeps_the_latest_of_each_key(host: HousekeepingHost) -> None:
    partition = host.make("pond", COMPACT)
    host.append_safely(partition, b"a", b"b", b"a", b"c", b"last")
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.keys(partition) == [(1, b"b"), (2, b"a"), (3, b"c"), (4, b"last")]
    assert "compacted pond-0" in host.journal


def test_nothing_is_compacted_while_the_disk_is_full(host: HousekeepingHost) -> None:
    """Compaction rewrites a log: it would take the space that the reserve released for the metadata."""
    partition = host.make("pond", COMPACT)
    host.append_safely(partition, b"a", b"b", b"a", b"c", b"last")
    host.store.files.room.is_short = True
    host.run(3 * COMPACTION_MS)
    assert [key for _, key in host.keys(partition)] == [b"a", b"b", b"a", b"c", b"last"]
    assert host.journal == []
    host.store.files.room.is_short = False
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert "compacted pond-0" in host.journal


def test_a_clock_that_leaps_ahead_ends_no_tombstone(host: HousekeepingHost) -> None:
    partition = host.make("pond", replace(COMPACT, delete_retention_ms=24 * 3_600_000))
    host.append(partition, b"a")
    tombstone = host.make_batch(None, key=b"a", timestamp=host.world.clock.wall_ms())
    partition.append(tombstone, zstd=True)
    host.append_safely(partition, b"b", b"last")
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.keys(partition) == [(1, b"a"), (2, b"b"), (3, b"last")]
    host.sim.clock.jump_wall(7 * 24 * 3_600_000)
    host.append_safely(partition, b"b", b"last")
    host.run(2 * COMPACTION_MS)
    assert host.keys(partition) == [(1, b"a"), (3, b"last"), (4, b"b"), (5, b"last")]


def test_all_logs_that_need_it_are_compacted_one_after_the_other(host: HousekeepingHost) -> None:
    partitions = [host.make(name, COMPACT) for name in ("x", "y", "z")]
    for partition in partitions:
        host.append_safely(partition, b"a", b"a", b"last")
    running: list[int] = []
    run = host.world.workers.run

    def counting(job: Any) -> Any:
        running.append(sum(bool(each.log.compaction.held) for each in partitions))
        return run(job)

    host.world.workers.run = counting  # type: ignore[method-assign]
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.journal == ["compacted x-0", "compacted y-0", "compacted z-0"]
    assert max(running) == 1
    assert [host.keys(each)[0] for each in partitions] == [(1, b"a")] * 3


def test_after_a_turn_the_others_come_first(host: HousekeepingHost) -> None:
    partitions = [host.make(name, COMPACT) for name in ("x", "y")]
    host.append_safely(partitions[0], b"a", b"a", b"last")
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    for partition in partitions:
        host.append_safely(partition, b"a", b"a", b"last")
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.journal == ["compacted x-0", "compacted y-0", "compacted x-0"]


def test_compaction_may_be_switched_off_and_on(host: HousekeepingHost) -> None:
    partition = host.make("pond", COMPACT)
    host.append_safely(partition, b"a", b"a", b"last")
    host.texts["log.cleaner.enable"] = "false"
    host.run(2 * COMPACTION_MS)
    assert host.journal == []
    host.texts["log.cleaner.enable"] = "true"
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.journal == ["compacted pond-0"]


def test_a_compaction_that_fails_leaves_the_log_as_it_was_and_gives_up_its_turn(host: HousekeepingHost) -> None:
    bad, good = host.make("bad", COMPACT), host.make("good", COMPACT)
    for partition in (bad, good):
        host.append_safely(partition, b"a", b"a", b"last")
    host.disk.fail_syncs(".cleaned", times=1)
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.journal == ["compaction failed bad-0"]
    assert not bad.log.compaction.held
    assert host.keys(bad)[0] == (0, b"a")
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.journal[1:] == ["compacted good-0", "compacted bad-0"]


def test_a_log_that_cannot_be_looked_at_does_not_keep_the_others_from_their_turn(host: HousekeepingHost) -> None:
    bad, good = host.make("bad", COMPACT), host.make("good", COMPACT)
    for partition in (bad, good):
        host.append_safely(partition, b"a", b"a", b"last")
    host.disk.fail_reads("/bad-0/", times=1)
    host.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert host.journal == ["compaction failed bad-0", "compacted good-0", "compacted bad-0"]


def test_a_log_that_is_deleted_under_its_compaction_is_not_called_compacted(host: HousekeepingHost) -> None:
    partition = host.make("pond", COMPACT)
    host.append_safely(partition, b"a", b"a", b"last")
    folder = partition.log.folder
    has_run = lambda: any(".swap" in name for name in host.disk.list(folder))  # noqa: E731
    assert host.sim.run_until(has_run, within_ms=2 * COMPACTION_MS)
    host.partitions.remove(partition)
    host.store.delete(partition.name)
    host.run(10 * WORKERS_MS)
    assert "compacted pond-0" not in host.journal


def test_a_compaction_that_ends_after_the_end_begins_no_other(host: HousekeepingHost) -> None:
    partitions = [host.make(name, COMPACT) for name in ("x", "y")]
    for partition in partitions:
        host.append_safely(partition, b"a", b"a", b"last")
    host.sim.run_until(lambda: bool(partitions[0].log.compaction.held), within_ms=2 * COMPACTION_MS)
    host.keeping.stop()
    host.run(10 * WORKERS_MS)
    assert not partitions[0].log.compaction.held
    assert host.keys(partitions[1])[0] == (0, b"a")
