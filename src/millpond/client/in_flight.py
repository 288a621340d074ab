"""The uncommitted records of a worker: ready, delayed, running or finished.

No clock, consumer or threads in here. One lock guards everything; handlers never hold it. A partition has a Progress
from assignment until revocation; records of other partitions are ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import count
from threading import Condition, RLock

from millpond.base.ids import TopicPartition
from millpond.client.lanes import Lanes
from millpond.client.message import Message, Send, partition_of
from millpond.client.progress import Job, Progress
from millpond.client.retry import IncomingRecord


class InFlight:
    def __init__(self, retry_topics: Container[str] = ()) -> None:
        self.mutex = RLock()
        """The lock of `lock`, for callers that neither wait nor notify: taking it costs a third."""
        self.lock = Condition(self.mutex)
        self._is_watched = False
        """Whether the polling thread waits for a change."""
        self._wake_at_count: int | None = None
        """Wake the polling thread when at most this many records are taken, not after every record."""
        self._retry_topics = retry_topics
        self._lanes: Lanes[Job] = Lanes()
        self._progress: dict[TopicPartition, Progress] = {}
        self._delayed: list[tuple[float, int, Job]] = []
        """Records that wait until a time, the next due first; the number breaks ties."""
        self._numbers = count()
        self._earlier: list[tuple[TopicPartition, Progress]] = []
        """Revoked assignments of which a record is still running."""
        self._count = 0
        """Records in flight in all partitions."""
        self._retry_topic_count = 0
        """Delayed records that were read from a retry topic."""

    def __len__(self) -> int:
        """Records that are unfinished, or behind an unfinished one."""
        return self._count

    def taken_count(self) -> int:
        """Records that count toward the limit. Those waiting in a retry topic must not starve the rest."""
        with self.mutex:
            return self._count - self._retry_topic_count

    # Waiting

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float, *, wake_at_count: int | None = None) -> bool:
        """Wait until the condition holds; whether it does. Only the polling thread waits.

        With `wake_at_count` it checks only when at most this many records are taken, or a runner is idle.
        """
        with self.lock:
            self._is_watched, self._wake_at_count = True, wake_at_count
            try:
                return self.lock.wait_for(is_so, timeout_s)
            finally:
                self._is_watched = False

    def notify_change(self, *, is_idle: bool = False) -> None:
        """A record ended or was sent, or a runner is idle: wake the polling thread. The caller holds the lock."""
        limit = self._wake_at_count
        if self._is_watched and (is_idle or limit is None or self._count - self._retry_topic_count <= limit):
            self.lock.notify_all()

    # Partitions

    def partitions(self) -> list[TopicPartition]:
        with self.mutex:
            return list(self._progress)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        with self.mutex:
            self.revoke(partitions)
            self._progress |= {each: Progress() for each in partitions}

    def revoke(self, partitions: Sequence[TopicPartition]) -> None:
        with self.mutex:
            for each in partitions:
                if each in self._progress:
                    progress = self._progress.pop(each)
                    progress.is_ours = False
                    self._count -= len(progress)
                    self._earlier.append((each, progress))
            self._earlier = [each for each in self._earlier if each[1].running]

    def drop(self, partitions: Sequence[TopicPartition], *, keep_gaps: bool) -> None:
        """Drop the records of these partitions that have not started, or wait for another attempt.

        `keep_gaps` keeps those before a started record: if they run too, nothing runs twice.
        """
        gone = frozenset(partitions)
        with self.mutex:
            waiting = [job for _, _, job in self._delayed if job.partition in gone]
            self._delayed = [each for each in self._delayed if each[2].partition not in gone]
            heapq.heapify(self._delayed)
            self._retry_topic_count -= sum(map(self._is_in_retry_topic, waiting))
            # Records behind one that will run elsewhere must not overtake it here.
            closed = dict.fromkeys(job.lane for job in waiting if job.lane is not None)
            self._lanes.drop(
                lambda job: (
                    job.partition in gone
                    and not (keep_gaps and job.lane not in closed and job.message.offset < job.progress.furthest)
                )
            )
            for lane in closed:
                self._lanes.release(lane)

    def is_running(self, partitions: Sequence[TopicPartition]) -> bool:
        with self.mutex:
            held = [self._progress[each] for each in partitions if each in self._progress]
            held += [progress for partition, progress in self._earlier if partition in partitions]
            return any(progress.running for progress in held)

    def is_waiting(self, partitions: Sequence[TopicPartition]) -> bool:
        """Whether records of these partitions are ready, or behind another record of their key."""
        with self.mutex:
            return self._lanes.has(lambda job: job.partition in partitions)

    # Records

    def add(self, record: IncomingRecord, due: float = 0.0) -> None:
        """Add a record, which waits until `due`; ignored if its partition is not assigned."""
        message, origin = record.message, record.origin
        partition = partition_of(message)
        with self.mutex:
            progress = self._progress.get(partition)
            if progress is None:
                return
            progress.begin(message.offset)
            self._recount()
            key = message.key
            lane = None if key is None or due else (origin.topic, origin.partition, key)
            job = Job(message, partition, progress, lane, record.attempts, record.redriven, moved_from=origin)
            if due:
                self._delay(job, due)
            else:
                self._lanes.add(lane, job)

    def add_new(self, messages: Sequence[Message]) -> None:
        """The same for records without headers of ours: most records, in runs of one partition."""
        topic, number = "", -1
        with self.mutex:
            for message in messages:
                if message.partition != number or message.topic != topic:
                    partition = partition_of(message)
                    topic, number = partition
                    progress = self._progress.get(partition)
                if progress is None:
                    continue
                progress.begin(message.offset)
                lane = None if message.key is None else (topic, number, message.key)
                self._lanes.add(lane, Job(message, partition, progress, lane))
            self._recount()

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Finish a record that is for another group."""
        with self.mutex:
            progress = self._progress.get(partition)
            if progress is not None:
                progress.begin(offset)
                progress.finish(offset, [])
                self._recount()

    def is_ours(self, job: Job) -> bool:
        """Whether the assignment in which the record was read still holds."""
        return job.progress.is_ours

    def ready_count(self) -> int:
        return self._lanes.ready_count()

    def start(self) -> Job | None:
        """The next record to run."""
        with self.mutex:
            job = self._lanes.take()
            if job is not None:
                job.progress.running += 1
                if job.message.offset > job.progress.furthest:
                    job.progress.furthest = job.message.offset
                job.attempts += 1
            return job

    def end(self, job: Job, *, keeps_lane: bool) -> None:
        """An attempt is over. The next record of the lane may run, unless the lane is kept."""
        with self.mutex:
            job.progress.running -= 1
            if not keeps_lane:
                self._lanes.release(job.lane)
            self.notify_change()

    def end_finished(self, job: Job) -> bool:
        """The same for a finished record without Sends. False if its partition was revoked."""
        with self.mutex:
            progress = job.progress
            if progress.is_ours:
                self._count -= progress.finish(job.message.offset, [])
            self.end(job, keeps_lane=False)
            return progress.is_ours

    def run_again(self, job: Job, due: float, *, keeps_lane: bool) -> bool:
        """Delay the record's next attempt. Whether its lane is kept."""
        with self.mutex:
            if not self.is_ours(job):
                return False
            self._delay(job if keeps_lane else replace(job, lane=None), due)
            return keeps_lane

    def next_due(self) -> float | None:
        with self.mutex:
            return self._delayed[0][0] if self._delayed else None

    def wake(self, now: float) -> None:
        """Records that are due may run."""
        with self.mutex:
            while self._delayed and self._delayed[0][0] <= now:
                _, _, job = heapq.heappop(self._delayed)
                self._retry_topic_count -= self._is_in_retry_topic(job)
                self._lanes.again(job.lane, job)

    def _delay(self, job: Job, due: float) -> None:
        heapq.heappush(self._delayed, (due, next(self._numbers), job))
        self._retry_topic_count += self._is_in_retry_topic(job)

    def _is_in_retry_topic(self, job: Job) -> bool:
        return job.partition.topic in self._retry_topics

    def _recount(self) -> None:
        self._count = sum(map(len, self._progress.values()))

    # What is finished

    def finish(self, job: Job, outgoing: list[Send]) -> None:
        with self.mutex:
            finished = job.progress.finish(job.message.offset, outgoing)
            if job.progress.is_ours:
                self._count -= finished

    def take_finished(self) -> Iterator[tuple[TopicPartition, int, list[Send]]]:
        """By partition, the offset to commit and the Sends that must come first."""
        with self.mutex:
            taken = [(partition, *progress.take()) for partition, progress in self._progress.items()]
        return ((partition, offset, sends) for partition, offset, sends in taken if offset is not None)

    def not_started(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """By partition, the first record after the last started one, if any."""
        with self.mutex:
            held = {each: self._progress[each] for each in partitions if each in self._progress}
            firsts = {each: progress.not_started() for each, progress in held.items()}
        return {each: offset for each, offset in firsts.items() if offset is not None}
