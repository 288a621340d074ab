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


class Play:
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
        self.journal.append(f"{event} {facts.get('partition', '')}".strip())

    def make(self, topic: str, limits: LogLimits) -> Partition:
        name = TopicPartition(topic, 0)
        topic_id = UUID(int=len(self.partitions) + 1)
        log = self.store.create(name, topic_id, limits)
        context = partition_context(self.world.disk, self.world.clock, flush=self.keeping.flush)
        made = Partition(name, topic_id, log, context)
        made.follow(view(ME, 0, 0))
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
        found: list[tuple[int, bytes | None]] = []
        offset: int = log.start_offset
        while data := log.read_batches(offset, 1 << 20):
            for position, header in walk(data):
                found += [(record.offset, record.key) for record in decode_batch(data, position)]
                offset = header.next_offset
        return found


@pytest.fixture
def play(make_batch: Callable[..., memoryview]) -> Play:
    return Play(make_batch)


# Turns.


def test_connections_are_looked_at_every_second(play: Play) -> None:
    play.run(5 * SWEEP_MS)
    assert play.sweeps == 5


def test_a_changed_interval_counts_from_the_next_turn_on(play: Play) -> None:
    partition = play.make("pond", SMALL)
    play.append(partition, b"a")
    play.texts["log.flush.offset.checkpoint.interval.ms"] = "10"
    play.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert "pond 0 1" in play.recovery_points()
    play.append(partition, b"b")
    play.run(10 + WORKERS_MS)
    assert "pond 0 2" in play.recovery_points()


def test_nothing_happens_after_the_end(play: Play) -> None:
    partition = play.make("pond", LogLimits(flush_ms=1, retention_ms=1))
    play.append(partition, b"a")
    play.keeping.stop()
    play.run(2 * RETENTION_MS)
    assert (play.sweeps, play.journal, play.recovery_points()) == (0, [], "")
    assert partition.log.synced_offset == 0
    assert partition.log.start_offset == 0


# Flushing by age.


def test_a_log_is_flushed_once_it_has_been_dirty_for_long_enough(play: Play) -> None:
    eager, lazy = play.make("eager", LogLimits(flush_ms=3_000)), play.make("lazy", LogLimits())
    play.run(500)
    play.append(eager, b"a")
    play.append(lazy, b"a")
    play.run(500 + 2 * SWEEP_MS + WORKERS_MS)
    assert eager.log.synced_offset == 0
    play.run(2 * SWEEP_MS + WORKERS_MS)
    assert (eager.log.synced_offset, lazy.log.synced_offset) == (1, 0)


def test_a_log_that_is_always_dirty_is_flushed_at_its_own_pace(play: Play) -> None:
    partition = play.make("pond", LogLimits(flush_ms=10_000))
    for _ in range(60):
        play.append(partition, b"a")
        play.run(500)
    syncs = sum(" sync " in line and "pond-0" in line and ".log" in line for line in play.disk.trace)
    assert 2 <= syncs <= 3, "in thirty seconds"


# Retention.


def test_old_segments_go_first_from_the_log_and_later_from_the_disk(play: Play) -> None:
    partition = play.make("pond", LogLimits(segment_bytes=80, retention_bytes=100, file_delete_delay_ms=1_000))
    play.append(partition, b"a", b"b", b"c", b"d")
    assert play.segment_files(partition) == 4
    play.run(RETENTION_MS)
    assert partition.log.start_offset == 2
    assert play.journal == ["retention pond-0"]
    assert play.segment_files(partition) == 4, "whoever reads them has time to finish"
    play.run(1_000 + WORKERS_MS)
    assert play.segment_files(partition) == 2
    assert [key for _, key in play.keys(partition)] == [b"c", b"d"]


def test_time_takes_even_the_last_segment(play: Play) -> None:
    partition = play.make("pond", LogLimits(retention_ms=1_000, file_delete_delay_ms=0))
    play.append(partition, b"a")
    play.run(RETENTION_MS + WORKERS_MS)
    assert (partition.log.start_offset, partition.log.end_offset) == (1, 1)
    assert play.segment_files(partition) == 1
    play.append(partition, b"b")
    assert play.keys(partition) == [(1, b"b")]


def test_what_the_last_life_did_not_come_to_remove_is_removed(play: Play) -> None:
    partition = play.make("pond", LogLimits(segment_bytes=80, file_delete_delay_ms=1_000))
    play.append(partition, b"a", b"b", b"c", b"d")
    partition.log.retire(partition.log.segments[:2])
    # As after opening the log.
    partition.log.durability.away.asked = 0
    play.run(RETENTION_MS)
    assert play.segment_files(partition) == 4
    play.run(1_000 + WORKERS_MS)
    assert play.segment_files(partition) == 2
    assert play.journal == []


def test_a_removal_that_keeps_failing_is_one(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = play.make("pond", replace(SMALL, retention_ms=1_000))
    play.append_safely(partition, b"a", b"b", b"c")

    def remove(disk: SimDisk, path: str) -> None:
        raise OSError("broken")

    monkeypatch.setattr(SimDisk, "remove", remove)
    play.run(HOUR_MS)
    assert 50 <= play.journal.count("removal failed") <= 60


def test_a_removal_that_waits_for_long_is_one(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = play.make("pond", replace(SMALL, retention_ms=1_000, file_delete_delay_ms=24 * 3_600_000))
    play.append_safely(partition, b"a", b"b", b"c")
    asked: list[object] = []
    monkeypatch.setattr(play.keeping, "remove_later", asked.append)
    play.run(HOUR_MS)
    assert len(asked) == 1


def test_a_clock_that_is_set_back_between_two_turns_deletes_nothing(play: Play) -> None:
    """The records are old but were just written: retention uses the write time, which moves with the clock."""
    old, new = (play.make(name, replace(SMALL, retention_ms=12 * HOUR_MS)) for name in ("old", "new"))
    play.run(1_000)
    for partition in (old, new):
        for key in (b"a", b"b", b"c"):
            stamp = play.world.clock.wall_ms() - 48 * HOUR_MS
            partition.append(play.make_batch(b"v", key=key, timestamp=stamp), zstd=True)
    old.log.segments[0].appended_ms -= 24 * HOUR_MS
    steps = play.keeping._retain_all()
    next(steps)
    assert old.log.start_offset == 1
    play.sim.clock.jump_wall(-24 * HOUR_MS)
    play.keeping.compact()
    for _ in steps:
        pass
    assert new.log.start_offset == 0


def test_many_segments_go_some_in_each_turn_and_their_files_in_one_job(play: Play) -> None:
    count = 3 * RETIRED_AT_ONCE
    partition = play.make("pond", LogLimits(segment_bytes=80, retention_ms=1_000, file_delete_delay_ms=1_000))
    for _ in range(count):
        play.append_safely(partition, b"k")
    log = partition.log
    starts: list[int] = []
    retire = log.retire
    log.retire = lambda segments: (starts.append(log.start_offset), retire(segments))[1]  # type: ignore[method-assign]
    assert play.sim.run_until(lambda: bool(starts), within_ms=RETENTION_MS)
    assert (starts, log.start_offset) == ([0], RETIRED_AT_ONCE), "one portion, then the others have their turn"
    play.run(0)
    assert (starts, log.start_offset) == ([0, RETIRED_AT_ONCE, 2 * RETIRED_AT_ONCE], count)
    assert play.journal == ["retention pond-0"]
    jobs: list[Any] = []
    run = play.world.workers.run

    def noting(job: Any) -> Any:
        jobs.append(job.__self__)
        return run(job)

    play.world.workers.run = noting  # type: ignore[method-assign]
    play.run(1_000 + 100 * WORKERS_MS)
    assert sum(isinstance(job, RemovalJob) for job in jobs) == 1, (
        "two at once could take the middle before the beginning"
    )
    assert play.segment_files(partition) == 1


def test_the_end_comes_while_segments_go(play: Play) -> None:
    partition = play.make("pond", LogLimits(segment_bytes=80, retention_ms=1_000))
    for _ in range(2 * RETIRED_AT_ONCE):
        play.append_safely(partition, b"k")
    assert play.sim.run_until(lambda: partition.log.start_offset > 0, within_ms=RETENTION_MS)
    play.keeping.stop()
    play.run(RETENTION_MS)
    assert partition.log.start_offset == RETIRED_AT_ONCE
    assert play.journal == []


def test_many_logs_are_looked_at_some_in_each_turn(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is deleted before its turn is skipped."""
    monkeypatch.setattr(housekeeping, "LOOKS_AT_ONCE", 2)
    looked: list[str] = []
    partitions = [play.make(name, COMPACT) for name in "abcde"]
    for partition in partitions:
        for ask in ("expired_segments", "compaction_candidate"):

            def look(*_: Any, name: str = partition.name.topic, ask: str = ask) -> Any:
                looked.append(f"{ask} {name}")
                return [] if ask == "expired_segments" else None

            setattr(partition.log, ask, look)
    for ask, interval_ms in (("compaction_candidate", COMPACTION_MS), ("expired_segments", RETENTION_MS)):
        looked.clear()
        assert play.sim.run_until(lambda ask=ask: f"{ask} a" in looked, within_ms=interval_ms)  # type: ignore[misc]
        assert [line for line in looked if ask in line] == [f"{ask} a", f"{ask} b"]
        last = list(play.partitions)[-1]
        play.partitions.discard(last)
        play.run(0)
        rest = [partition.name.topic for partition in play.partitions]
        assert [line for line in looked if ask in line] == [f"{ask} {name}" for name in rest]


def test_a_clock_that_leaps_ahead_deletes_nothing(play: Play) -> None:
    partition = play.make("pond", LogLimits(retention_ms=3_600_000))
    play.append(partition, b"a")
    play.run(RETENTION_MS)
    play.sim.clock.jump_wall(7 * 24 * 3_600_000)
    play.run(RETENTION_MS)
    assert partition.log.start_offset == 0


def test_one_log_that_cannot_be_cut_does_not_keep_the_others_from_it(play: Play) -> None:
    limits = LogLimits(retention_ms=1_000)
    for name in ("a", "bad", "c"):
        play.append(play.make(name, limits), b"k")
    bad = play.partitions.get("bad", 0)
    assert bad is not None
    bad.log.retire = lambda _: (_ for _ in ()).throw(OSError("broken"))  # type: ignore[assignment]
    play.run(RETENTION_MS)
    assert play.journal == ["retention a-0", "retention failed bad-0", "retention c-0"]


def test_a_log_that_has_failed_is_left_as_it_is(play: Play) -> None:
    partition = play.make("pond", LogLimits(retention_ms=1_000))
    play.append(partition, b"a")
    partition.log.fail(OSError("broken"))
    play.run(RETENTION_MS)
    assert (partition.log.start_offset, play.journal) == (0, [])


def test_a_removal_that_fails_is_told_and_one_that_is_not_wanted_any_more_is_not_begun(play: Play) -> None:
    class Job:
        delay_ms = 5

        def __init__(self, wanted: bool, is_tried_again: bool = True) -> None:
            self.wanted = wanted
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
        play.keeping.remove_later(job)
    play.run(5 + WORKERS_MS)
    assert play.journal == ["removal failed"] * 2
    assert [job.steps for job in jobs] == [["run", "end False"], [], ["run", "end False"]]
    play.run(REMOVE_AGAIN_MS + WORKERS_MS)
    assert [job.steps for job in jobs] == [["run", "end False"] * 2, [], ["run", "end False"]]


# Checkpoints.


def test_a_checkpoint_forces_what_nobody_waited_for(play: Play) -> None:
    partitions = [play.make(name, SMALL) for name in ("a", "b")]
    for partition in partitions:
        play.append(partition, b"k")
    play.run(CHECKPOINT_MS)
    assert play.recovery_points() == "", "not before the disk is sure"
    play.run(2 * WORKERS_MS)
    assert [each.log.synced_offset for each in partitions] == [1, 1]
    assert "a 0 1" in play.recovery_points()
    assert "b 0 1" in play.recovery_points()


def test_a_failed_log_does_not_keep_the_others_from_their_checkpoint(play: Play) -> None:
    bad, good = play.make("bad", SMALL), play.make("good", SMALL)
    for partition in (bad, good):
        play.append(partition, b"k")
    play.disk.fail_syncs("/bad-0/", times=None)
    play.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert bad.log.failed is not None
    assert "good 0 1" in play.recovery_points()
    assert "bad 0 0" in play.recovery_points()


def test_a_checkpoint_that_cannot_be_written_is_told_and_tried_again(play: Play) -> None:
    play.append(play.make("pond", SMALL), b"k")
    play.disk.fail_syncs("recovery-point", times=1)
    play.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert play.journal == ["checkpoint failed"]
    play.run(CHECKPOINT_MS + 2 * WORKERS_MS)
    assert "pond 0 1" in play.recovery_points()


# Compaction.


def test_what_is_not_safe_yet_is_not_compacted(play: Play) -> None:
    partition = play.make("pond", COMPACT)
    play.append_safely(partition, b"a", b"b")
    play.append(partition, b"a", b"b", b"a", b"b", b"c")
    play.run(2 * COMPACTION_MS)
    assert play.keys(partition)[:2] == [(0, b"a"), (1, b"b")]


def test_compaction_keeps_the_latest_of_each_key(play: Play) -> None:
    partition = play.make("pond", COMPACT)
    play.append_safely(partition, b"a", b"b", b"a", b"c", b"last")
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.keys(partition) == [(1, b"b"), (2, b"a"), (3, b"c"), (4, b"last")]
    assert "compacted pond-0" in play.journal


def test_nothing_is_compacted_while_the_disk_is_full(play: Play) -> None:
    """Compaction rewrites a log: it would take the space that the reserve released for the metadata."""
    partition = play.make("pond", COMPACT)
    play.append_safely(partition, b"a", b"b", b"a", b"c", b"last")
    play.store.files.room.is_short = True
    play.run(3 * COMPACTION_MS)
    assert [key for _, key in play.keys(partition)] == [b"a", b"b", b"a", b"c", b"last"]
    assert play.journal == []
    play.store.files.room.is_short = False
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert "compacted pond-0" in play.journal


def test_a_clock_that_leaps_ahead_ends_no_tombstone(play: Play) -> None:
    partition = play.make("pond", replace(COMPACT, delete_retention_ms=24 * 3_600_000))
    play.append(partition, b"a")
    tombstone = play.make_batch(None, key=b"a", timestamp=play.world.clock.wall_ms())
    partition.append(tombstone, zstd=True)
    play.append_safely(partition, b"b", b"last")
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.keys(partition) == [(1, b"a"), (2, b"b"), (3, b"last")]
    play.sim.clock.jump_wall(7 * 24 * 3_600_000)
    play.append_safely(partition, b"b", b"last")
    play.run(2 * COMPACTION_MS)
    assert play.keys(partition) == [(1, b"a"), (3, b"last"), (4, b"b"), (5, b"last")]


def test_all_logs_that_need_it_are_compacted_one_after_the_other(play: Play) -> None:
    partitions = [play.make(name, COMPACT) for name in ("x", "y", "z")]
    for partition in partitions:
        play.append_safely(partition, b"a", b"a", b"last")
    running: list[int] = []
    run = play.world.workers.run

    def counting(job: Any) -> Any:
        running.append(sum(bool(each.log.compaction.held) for each in partitions))
        return run(job)

    play.world.workers.run = counting  # type: ignore[method-assign]
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.journal == ["compacted x-0", "compacted y-0", "compacted z-0"]
    assert max(running) == 1
    assert [play.keys(each)[0] for each in partitions] == [(1, b"a")] * 3


def test_after_a_turn_the_others_come_first(play: Play) -> None:
    partitions = [play.make(name, COMPACT) for name in ("x", "y")]
    play.append_safely(partitions[0], b"a", b"a", b"last")
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    for partition in partitions:
        play.append_safely(partition, b"a", b"a", b"last")
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.journal == ["compacted x-0", "compacted y-0", "compacted x-0"]


def test_compaction_may_be_switched_off_and_on(play: Play) -> None:
    partition = play.make("pond", COMPACT)
    play.append_safely(partition, b"a", b"a", b"last")
    play.texts["log.cleaner.enable"] = "false"
    play.run(2 * COMPACTION_MS)
    assert play.journal == []
    play.texts["log.cleaner.enable"] = "true"
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.journal == ["compacted pond-0"]


def test_a_compaction_that_fails_leaves_the_log_as_it_was_and_gives_up_its_turn(play: Play) -> None:
    bad, good = play.make("bad", COMPACT), play.make("good", COMPACT)
    for partition in (bad, good):
        play.append_safely(partition, b"a", b"a", b"last")
    play.disk.fail_syncs(".cleaned", times=1)
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.journal == ["compaction failed bad-0"]
    assert not bad.log.compaction.held
    assert play.keys(bad)[0] == (0, b"a")
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.journal[1:] == ["compacted good-0", "compacted bad-0"]


def test_a_log_that_cannot_be_looked_at_does_not_keep_the_others_from_their_turn(play: Play) -> None:
    bad, good = play.make("bad", COMPACT), play.make("good", COMPACT)
    for partition in (bad, good):
        play.append_safely(partition, b"a", b"a", b"last")
    play.disk.fail_reads("/bad-0/", times=1)
    play.run(COMPACTION_MS + 10 * WORKERS_MS)
    assert play.journal == ["compaction failed bad-0", "compacted good-0", "compacted bad-0"]


def test_a_log_that_is_deleted_under_its_compaction_is_not_called_compacted(play: Play) -> None:
    partition = play.make("pond", COMPACT)
    play.append_safely(partition, b"a", b"a", b"last")
    folder = partition.log.folder
    has_run = lambda: any(".swap" in name for name in play.disk.list(folder))  # noqa: E731
    assert play.sim.run_until(has_run, within_ms=2 * COMPACTION_MS)
    play.partitions.discard(partition)
    play.store.delete(partition.name)
    play.run(10 * WORKERS_MS)
    assert "compacted pond-0" not in play.journal


def test_a_compaction_that_ends_after_the_end_begins_no_other(play: Play) -> None:
    partitions = [play.make(name, COMPACT) for name in ("x", "y")]
    for partition in partitions:
        play.append_safely(partition, b"a", b"a", b"last")
    play.sim.run_until(lambda: bool(partitions[0].log.compaction.held), within_ms=2 * COMPACTION_MS)
    play.keeping.stop()
    play.run(10 * WORKERS_MS)
    assert not partitions[0].log.compaction.held
    assert play.keys(partitions[1])[0] == (0, b"a")
