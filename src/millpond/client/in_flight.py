"""The records that a worker has taken and not settled: who may run, who waits for a time, what is finished.

Knows neither clock nor consumer nor thread. All of it is under one lock, which handlers never hold. A partition has
progress from its assignment until it is taken away, and only then: a record of any other is not taken.
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
from millpond.client.retry import Taken


class InFlight:
    def __init__(self, retry_topics: Container[str] = ()) -> None:
        self.mutex = RLock()
        """The same lock as `lock`, for who neither waits nor wakes: taking it is a third of the price."""
        self.lock = Condition(self.mutex)
        self._is_watched = False
        """Whether somebody waits for something to change."""
        self._crowd_wanted: int | None = None
        """Who waits for room is woken when no more than so many are taken, not by each that ends."""
        self._retry_topics = retry_topics
        self._lanes: Lanes[Job] = Lanes()
        self._progress: dict[TopicPartition, Progress] = {}
        self._delayed: list[tuple[float, int, Job]] = []
        """Records that wait for a time, the next one first; the number only breaks ties."""
        self._numbers = count()
        self._earlier: list[tuple[TopicPartition, Progress]] = []
        """Of assignments that are over, those of which a record still runs."""
        self._count = 0
        """The sum of what is under way in all partitions."""
        self._parked = 0
        """Those among the delayed that wait in a retry topic's queue."""

    def __len__(self) -> int:
        """Records that are not finished, or behind one that is not."""
        return self._count

    def crowd(self) -> int:
        """Those that count as taken. Those that wait in a retry topic's queue must not starve the rest."""
        with self.mutex:
            return self._count - self._parked

    # Waiting

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float, *, crowd: int | None = None) -> bool:
        """Until it is so; whether it is. Only the polling thread waits.

        With `crowd` it looks again when no more than so many are taken, and when a runner has nothing to do.
        """
        with self.lock:
            self._is_watched, self._crowd_wanted = True, crowd
            try:
                return self.lock.wait_for(is_so, timeout_s)
            finally:
                self._is_watched = False

    def tell_change(self, *, is_idle: bool = False) -> None:
        """Something ended, was sent, or a runner is idle; whoever holds the lock wakes who waits for that."""
        wanted = self._crowd_wanted
        if self._is_watched and (is_idle or wanted is None or self._count - self._parked <= wanted):
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
        """Forget the records of these partitions that have not been started, or wait for another try.

        With `keep_gaps` those stay that stand before one that was started: if they run too, nothing runs twice.
        """
        gone = frozenset(partitions)
        with self.mutex:
            waiting = [job for _, _, job in self._delayed if job.partition in gone]
            self._delayed = [each for each in self._delayed if each[2].partition not in gone]
            heapq.heapify(self._delayed)
            self._parked -= sum(map(self._is_parked, waiting))
            # Who stands behind a record that will run elsewhere must not overtake it here.
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
        """Whether records of these could be run now, or when another of their key has."""
        with self.mutex:
            return self._lanes.has(lambda job: job.partition in partitions)

    # Records

    def add(self, taken: Taken, due: float = 0.0) -> None:
        """A record was taken; with `due` it waits until then. One of a partition that is not ours is not."""
        message, origin = taken.message, taken.origin
        partition = partition_of(message)
        with self.mutex:
            progress = self._progress.get(partition)
            if progress is None:
                return
            progress.begin(message.offset)
            self._recount()
            key = message.key
            lane = None if key is None or due else (origin.topic, origin.partition, key)
            job = Job(message, partition, progress, lane, taken.attempts, taken.redriven, moved_from=origin)
            if due:
                self._delay(job, due)
            else:
                self._lanes.add(lane, job)

    def add_new(self, messages: Sequence[Message]) -> None:
        """The same for records of which nobody has said anything: most are such, and come in runs of a partition."""
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
        """A record was taken that is for others."""
        with self.mutex:
            progress = self._progress.get(partition)
            if progress is not None:
                progress.begin(offset)
                progress.finish(offset, [])
                self._recount()

    def is_ours(self, job: Job) -> bool:
        """Whether the partition is still, and not again, in the assignment that the record was read in."""
        return job.progress.is_ours

    def ready_count(self) -> int:
        return self._lanes.ready_count()

    def start(self) -> Job | None:
        """The next record to be run."""
        with self.mutex:
            job = self._lanes.take()
            if job is not None:
                job.progress.running += 1
                if job.message.offset > job.progress.furthest:
                    job.progress.furthest = job.message.offset
                job.attempts += 1
            return job

    def end(self, job: Job, *, keeps_lane: bool) -> None:
        """A try is over. Whoever stands behind the record may go, unless its lane is kept."""
        with self.mutex:
            job.progress.running -= 1
            if not keeps_lane:
                self._lanes.release(job.lane)
            self.tell_change()

    def end_well(self, job: Job) -> bool:
        """A try is over and the record finished, with nothing to be sent. False when it is not ours any more."""
        with self.mutex:
            progress = job.progress
            if progress.is_ours:
                self._count -= progress.finish(job.message.offset, [])
            self.end(job, keeps_lane=False)
            return progress.is_ours

    def run_again(self, job: Job, due: float, *, keeps_lane: bool) -> bool:
        """Let it wait for its next try. Whether its lane is kept for it."""
        with self.mutex:
            if not self.is_ours(job):
                return False
            self._delay(job if keeps_lane else replace(job, lane=None), due)
            return keeps_lane

    def next_due(self) -> float | None:
        with self.mutex:
            return self._delayed[0][0] if self._delayed else None

    def wake(self, now: float) -> None:
        """Whose time has come may run."""
        with self.mutex:
            while self._delayed and self._delayed[0][0] <= now:
                _, _, job = heapq.heappop(self._delayed)
                self._parked -= self._is_parked(job)
                self._lanes.again(job.lane, job)

    def _delay(self, job: Job, due: float) -> None:
        heapq.heappush(self._delayed, (due, next(self._numbers), job))
        self._parked += self._is_parked(job)

    def _is_parked(self, job: Job) -> bool:
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
        """By partition, the offset that may be committed now, and what must be sent before."""
        with self.mutex:
            taken = [(partition, *progress.take()) for partition, progress in self._progress.items()]
        return ((partition, offset, sends) for partition, offset, sends in taken if offset is not None)

    def not_started(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a partition has records behind the last that was started: the first of them."""
        with self.mutex:
            held = {each: self._progress[each] for each in partitions if each in self._progress}
            firsts = {each: progress.not_started() for each, progress in held.items()}
        return {each: offset for each, offset in firsts.items() if offset is not None}
