"""Background jobs: retention, compaction, checkpoints, flushing by age, closing idle connections.

Decisions are quick and run on the event loop, some partitions per turn; the slow part of each job runs on a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from millpond.base.errors import Refused, RemoteError
from millpond.base.ids import TopicPartition
from millpond.base.later import Later, gather
from millpond.base.ports import Clock, Timer, Workers
from millpond.base.settings import Setting, Settings
from millpond.broker.loop.journal import Journal
from millpond.broker.replication.partitions import Partition, Partitions
from millpond.broker.storage.checkpoint_writer import CheckpointWriter
from millpond.broker.storage.delayed_job import DelayedJob
from millpond.broker.storage.flusher import Flusher
from millpond.config.node import (
    CLEANER_BACKOFF_MS,
    CLEANER_ENABLE,
    FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS,
    RETENTION_CHECK_INTERVAL_MS,
)
from millpond.log.compaction import Cancelled, CompactionPlan
from millpond.log.limits import FOREVER
from millpond.log.partition_log import PartitionLog
from millpond.log.removal import RemovalJob
from millpond.log.store import LogStore

RELIEF_MS = 5
"""Delay before syncing all logs again while too many files are open."""

REMOVE_AGAIN_MS = 60_000
"""Delay before retrying to remove files."""

SWEEP_MS = 1000
"""How often the cheap checks run: idle connections, logs to flush by age."""

HIGH_WATERMARKS_MS = 5_000
"""How often high watermarks of replicated partitions are checkpointed."""

LOOKS_AT_ONCE = 200
"""Partitions checked per turn of the event loop: there may be ten thousand."""

RETIRED_AT_ONCE = 64
"""Segments retired from a log per turn of the event loop."""


class Housekeeping:
    def __init__(
        self,
        *,
        clock: Clock,
        workers: Workers,
        settings: Callable[[], Settings],
        partitions: Partitions,
        store: LogStore,
        flusher: Flusher,
        checkpoints: CheckpointWriter,
        sweeps: Sequence[Callable[[], None]],
        note_high_watermarks: Callable[[], None],
        journal: Journal,
    ) -> None:
        self._clock = clock
        self._workers = workers
        self._settings = settings
        self._partitions = partitions
        self._store = store
        self._flusher = flusher
        self._checkpoints = checkpoints
        self._sweeps = sweeps
        """Other checks that run once a second."""
        self._note_high_watermarks = note_high_watermarks
        self._journal = journal
        self._timers: dict[str, Timer] = {}
        self._compacting = False
        self._last_compacted: TopicPartition | None = None
        self._dirty_since_ms: dict[Partition, int] = {}
        self._running = False
        self._is_relieving = False
        self._under_way: set[str] = set()
        self._removals: dict[Timer, Callable[[], None]] = {}
        """Scheduled file removals."""

    def start(self) -> None:
        self._running = True
        self._every("sweep", lambda: SWEEP_MS, self._sweep)
        self._every("retention", self._interval(RETENTION_CHECK_INTERVAL_MS), self.retain)
        self._every("checkpoint", self._interval(FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS), self.checkpoint)
        self._every("compaction", self._interval(CLEANER_BACKOFF_MS), self.compact)

    def note_high_watermarks(self) -> None:
        """Start to checkpoint high watermarks; only needed with other nodes."""
        self._every("high watermarks", lambda: HIGH_WATERMARKS_MS, self._note_high_watermarks)

    def stop(self) -> None:
        self._running = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _interval(self, setting: Setting[int]) -> Callable[[], int]:
        return lambda: self._settings()[setting]

    def _every(self, name: str, interval_ms: Callable[[], int], work: Callable[[], None]) -> None:
        def run() -> None:
            if self._running:
                work()
                self._timers[name] = self._clock.call_later(max(interval_ms(), 1), run)

        self._timers[name] = self._clock.call_later(max(interval_ms(), 1), run)

    # Connections, and flushing by age.

    def _sweep(self) -> None:
        for sweep in self._sweeps:
            sweep()
        if self._store.files.room.is_short:
            self.make_room()
        now_ms = self._clock.monotonic_ms()
        dirty = {
            partition: self._dirty_since_ms.get(partition, now_ms)
            for partition in self._partitions
            if partition.log.limits.flush_ms != FOREVER and partition.log.dirty
        }
        self._dirty_since_ms = dirty
        for partition, since_ms in dirty.items():
            if now_ms - since_ms >= partition.log.limits.flush_ms:
                # Later records get their own interval.
                dirty[partition] = now_ms
                self.flush(partition.log)

    def flush(self, log: PartitionLog) -> None:
        """Sync a log in the background; all of them, if file descriptors are running out."""
        if self._store.files.is_pressed:
            self._relieve()
        else:
            self._flusher.force(log)

    def _relieve(self) -> None:
        """Sync all logs until few files are open: a written file stays open until it is synced."""
        if self._is_relieving:
            return
        self._is_relieving = True

        def relieved() -> None:
            self._is_relieving = False
            if self._running and self._store.files.is_pressed:
                self._relieve()

        def later(_: object) -> None:
            self._clock.call_later(RELIEF_MS, relieved)

        # All at once: clients are refused until the logs are synced.
        gather([self._force(partition.log) for partition in self._partitions if partition.log.dirty]).then(later)

    def _force(self, log: PartitionLog) -> Later[None]:
        # A log whose sync fails is closed and left out of the checkpoint.
        return self._flusher.force(log).recover(OSError, lambda _: None)

    # Retention.

    def retain(self) -> None:
        """Retire segments past their retention time or size, and expire idle producers."""
        self._in_turns("retention", self._retain_all())

    def _now_ms(self) -> int:
        """The time for retention. Not the raw wall clock: a jump ahead must not delete records."""
        return self._store.retention_now(self._clock.wall_ms(), self._clock.monotonic_ms())

    def _retain_all(self) -> Iterator[None]:
        for looked, partition in enumerate(self._partitions, 1):
            if partition.log.failed is None and self._is_here(partition):
                yield from self._retain(partition)
            if looked % LOOKS_AT_ONCE == 0:
                yield

    def _retain(self, partition: Partition) -> Iterator[None]:
        log = partition.log
        removal: RemovalJob | None = None
        count = 0
        try:
            log.expire_producers(self._now_ms())
            # Read the clock each time: between turns it may jump, and the append times with it.
            while segments := log.expired_segments(self._now_ms(), partition.committed_offset)[:RETIRED_AT_ONCE]:
                # Each job includes the files of the ones before.
                removal = log.retire(segments)
                count += sum(segment.is_gone for segment in segments)
                yield
        except (OSError, Refused) as error:
            self._journal("retention failed", partition=partition.name.folder, error=str(error))
        if count:
            partition.tell_start()
            self._journal("segments deleted by retention", partition=partition.name.folder, segments=count)
        if removal is None and log.owes_removal:
            removal = log.retire(())
        if removal is not None:
            self.remove_later(removal)

    def _is_here(self, partition: Partition) -> bool:
        """Whether the partition has not been deleted meanwhile."""
        return self._partitions.by_id(partition.topic_id, partition.name.partition) is partition

    def _in_turns(self, name: str, steps: Iterator[None]) -> None:
        """Run a job that yields to the event loop between steps, unless the same job is already running."""
        if name in self._under_way:
            return
        self._under_way.add(name)

        def go_on() -> None:
            for _ in steps:
                self._clock.call_soon(go_on_if_running)
                return
            self._under_way.discard(name)

        def go_on_if_running() -> None:
            if self._running:
                go_on()

        go_on()

    def remove_later(self, job: DelayedJob) -> None:
        """Remove unused files, after a delay in which running reads can finish.

        On a full disk, remove them at once: a reader with the file open continues, and a later one retries.
        """

        def run() -> None:
            if job.begin():
                self._workers.run(job.run).then(done, failed)

        def done(_: object) -> None:
            job.end(is_done=True)

        def failed(error: Exception) -> None:
            job.end(is_done=False)
            self._report("removal", error, folder=job.folder)
            if self._running and job.is_tried_again:
                self._clock.call_later(REMOVE_AGAIN_MS, run)

        def run_when_due() -> None:
            del self._removals[timer]
            run()

        if job.delay_ms and not self._store.files.room.is_short:
            timer = self._clock.call_later(job.delay_ms, run_when_due)
            self._removals[timer] = run
        else:
            # Begin at once: a compaction must not reuse the names of files that an earlier one left to be removed.
            run()

    def make_room(self) -> None:
        """The disk is full: run scheduled removals and retention now."""
        removals, self._removals = self._removals, {}
        for timer, run in removals.items():
            timer.cancel()
            run()
        self.retain()

    # Checkpoints.

    def checkpoint(self) -> None:
        """Bound the work of recovery: sync all dirty logs, then checkpoint their recovery points."""
        self._in_turns("checkpoint", self._force_all())

    def _force_all(self) -> Iterator[None]:
        forced: list[Later[None]] = []
        for looked, partition in enumerate(self._partitions, 1):
            if partition.log.dirty:
                forced.append(self._force(partition.log))
            if looked % LOOKS_AT_ONCE == 0:
                yield
        gather(forced).then(lambda _: self._write_checkpoints())

    def _write_checkpoints(self) -> None:
        if self._running:
            self._checkpoints.write().then(lambda _: None, lambda error: self._report("checkpoint", error))

    # Compaction: one log at a time, round robin.

    def compact(self) -> None:
        """Compact one log that needs it, then repeat until none does."""
        if self._compacting or not self._settings()[CLEANER_ENABLE]:
            return
        self._in_turns("compaction", self._begin_compaction(self._now_ms()))

    def _begin_compaction(self, now_ms: int) -> Iterator[None]:
        for looked, partition in enumerate(self._beginning_after_the_last(), 1):
            plan = self._plan_compaction(partition, now_ms) if self._is_here(partition) else None
            if plan is not None:
                self._last_compacted = partition.name
                self._run_compaction(partition, plan)
                return
            if looked % LOOKS_AT_ONCE == 0:
                yield

    def _beginning_after_the_last(self) -> list[Partition]:
        """All partitions, beginning after the one that was compacted last."""
        partitions = list(self._partitions)
        first = 1 + next((at for at, each in enumerate(partitions) if each.name == self._last_compacted), -1)
        return partitions[first:] + partitions[:first]

    def _plan_compaction(self, partition: Partition, now_ms: int) -> CompactionPlan | None:
        if self._store.files.room.is_short:
            # Compaction would use up the space that the disk reserve released for metadata.
            return None
        try:
            # Durable records only: a newer value that a power failure can erase must not replace a durable older one.
            safe_offset = min(partition.committed_offset, partition.log.synced_offset)
            leader_role = partition.leader_role
            evidence_upto = safe_offset if leader_role is None else leader_role.evidence_upto
            return partition.log.compaction_candidate(now_ms, safe_offset, evidence_upto)
        except OSError as error:
            self._journal("compaction failed", partition=partition.name.folder, error=str(error))
            return None

    def _run_compaction(self, partition: Partition, plan: CompactionPlan) -> None:
        log = partition.log
        self._compacting = True

        def done(_: object) -> None:
            self._compacting = False
            if finish(log.finish_compaction):
                self._journal("compacted", partition=partition.name.folder)
            if self._running:
                self._clock.call_soon(self.compact)

        def failed(error: Exception) -> None:
            self._compacting = False
            finish(log.give_up_compaction)
            # A batch whose records do not decode is its producer's fault: keep the log uncompacted.
            if not isinstance(error, OSError | RemoteError | Cancelled):
                raise error
            self._journal("compaction failed", partition=partition.name.folder, error=str(error))

        def finish(action: Callable[[CompactionPlan], DelayedJob]) -> bool:
            try:
                self.remove_later(action(plan))
            except (OSError, Refused) as error:
                self._journal("compaction failed", partition=partition.name.folder, error=str(error))
                return False
            return not log.closed

        self._workers.run(plan.run).then(done, failed)

    def _report(self, what: str, error: Exception, **facts: object) -> None:
        if not isinstance(error, OSError):
            raise error
        self._journal(f"{what} failed", **facts, error=str(error))
