"""What a running worker is: one polling thread that takes records, settles and keeps the group; handlers beside it.

All state is under one lock. A record is under way from `accept` until its offset is settled: it waits in a lane,
runs, maybe waits for its next try, and finishes with what it wants sent. Handlers never hold the lock.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from threading import Condition

from millpond.base.ids import TopicPartition
from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.handler import Handler
from millpond.client.lanes import Lanes
from millpond.client.message import Message, Send
from millpond.client.options import Options
from millpond.client.outcomes import is_worth_another_try, to_dead_letters, to_retry_topic
from millpond.client.own_topics import ensure_topics
from millpond.client.producer import Producer
from millpond.client.progress import Job, Progress
from millpond.client.retry import read_waited
from millpond.client.running import Runners, Tasks, Threads
from millpond.client.settling import AtLeastOnce, AtMostOnce, Settler, send
from millpond.client.transactions import Transactional

POLL_SECONDS_MAX = 0.05
POLL_RECORDS_MAX = 500
FULL_SECONDS = 0.5
DRAIN_CHECK_SECONDS = 0.1
SEND_SECONDS = 60.0


@dataclass(slots=True)
class Stats:
    """What a worker has done since it was started."""

    processed: int = 0
    retried: int = 0
    dead: int = 0
    skipped: int = 0
    """Records that a store of processed ids knew already."""


class Engine:
    def __init__(self, options: Options, handler: Handler, bootstrap: str | None) -> None:
        self.stats = Stats()
        self._options = options
        self._handler = handler
        self._bootstrap = bootstrap
        self._lock = Condition()
        self._lanes: Lanes[Job] = Lanes()
        self._progress: dict[TopicPartition, Progress] = {}
        self._delayed: list[tuple[float, int, Job]] = []
        """Records that wait for a time, the next one first; the number only breaks ties."""
        self._numbers = count()
        self._running: Counter[TopicPartition] = Counter()
        self._runners = 0
        self._paused_until: dict[TopicPartition, float] = {}
        self._is_full = False
        """Its partitions are paused until there is room again."""
        self._room_at = time.monotonic()
        self._stopping = False
        self._is_over = False
        """The last positions are settled; what the group says from now on changes nothing."""
        self._failure: BaseException | None = None
        self._producer: Producer | None = None
        self._retry_topics = frozenset(options.retry_topics())

    # The polling thread

    def run(self, until_idle_s: float | None = None) -> None:
        """Until `stop`, a failure (raised), or, when asked for, until nothing has happened for a while."""
        options = self._options
        if self._stopping:
            return
        self._ensure_topics()
        self._consumer = Consumer(
            options.group,
            [*options.topics, *self._retry_topics],
            bootstrap=self._bootstrap,
            from_=options.from_,
            protocol=options.protocol,
            instance=options.instance,
            session_timeout_s=options.session_timeout_s,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            wait_for_topics=True,
            settings=options.settings,
        )
        try:
            self._settler = self._make_settler()
            self._runner_pool = self._make_runners()
            try:
                self._loop(until_idle_s)
                self._finish_up()
            finally:
                self._stopping = self._is_over = True
                self._runner_pool.end(self._options.stop_timeout_s)
        finally:
            self._consumer.close()
            if self._producer is not None:
                self._producer.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask it to end: what runs is finished and committed, what waits is left for others. From any thread."""
        # No lock: a signal may come while this very thread holds it.
        self._stopping = True

    def _loop(self, until_idle_s: float | None) -> None:
        settle_at = 0.0
        busy_at = time.monotonic()
        while not self._stopping:
            room = self._room()
            batch = self._consumer.poll(room, self._poll_seconds()) if room else []
            now = time.monotonic()
            if batch and self._settler.before(batch):
                self._accept(batch, now)
            self._wake(now)
            if now >= settle_at:
                self._settler.settle()
                settle_at = now + self._options.commit_every_s
            if until_idle_s is not None:
                busy_at = now if batch or self._under_way() or not self._consumer.is_at_end() else busy_at
                if now - busy_at >= until_idle_s:
                    return

    def _finish_up(self) -> None:
        """The records that run are finished, their positions committed; a failed worker commits what was done."""
        self._drain(list(self._progress))
        self._settler.close()

    def _room(self) -> int:
        """How many records may be taken; waits a moment for room when there is none. 0: do not poll now.

        A worker that stays full pauses its partitions, because it must poll to stay a member of its group. Not at
        once: after a pause librdkafka takes up to a second to fetch again.
        """
        wait_s = self._poll_seconds()
        with self._lock:
            if not self._is_full:
                self._lock.wait_for(lambda: self._free() > 0 or self._stopping, wait_s)
            free = self._free()
        now = time.monotonic()
        if free > 0:
            self._room_at = now
        if free <= 0 and not self._is_full:
            if now - self._room_at < FULL_SECONDS:
                return 0
            self._is_full = True
            self._consumer.pause()
        elif self._is_full and free >= max(self._options.in_flight_max // 2, 1):
            self._is_full = False
            held = self._paused_until
            self._consumer.resume([place for place in self._consumer.assignment() if place not in held])
        return max(1, min(free, POLL_RECORDS_MAX))

    def _free(self) -> int:
        """Room under `in_flight_max`. Those that wait in a retry topic's queue must not starve the rest."""
        waiting = sum(job.place.topic in self._retry_topics for _, _, job in self._delayed)
        return self._options.in_flight_max - sum(map(len, self._progress.values())) + waiting

    def _under_way(self) -> int:
        with self._lock:
            return sum(map(len, self._progress.values()))

    def _poll_seconds(self) -> float:
        with self._lock:
            due = self._delayed[0][0] - time.monotonic() if self._delayed else POLL_SECONDS_MAX
        return min(max(due, 0.001), POLL_SECONDS_MAX)

    def _accept(self, batch: Sequence[Message], now: float) -> None:
        held: dict[TopicPartition, float] = {}
        with self._lock:
            for message in batch:
                place = TopicPartition(message.topic, message.partition)
                progress = self._progress.get(place)
                if progress is None:
                    continue
                progress.begin(message.offset)
                waited = read_waited(message)
                if waited.group not in (None, self._options.group):
                    progress.finish(message.offset, [])
                    continue
                key = message.key
                lane = None if key is None else (waited.origin.topic, waited.origin.partition, key)
                job = Job(message, place, progress, waited.origin, lane, waited.attempts)
                left_s = waited.due_ms / 1000 - time.time() if waited.due_ms else 0.0
                if left_s > 0:
                    job.lane = None
                    held[place] = max(held.get(place, 0.0), now + left_s)
                    heapq.heappush(self._delayed, (now + left_s, next(self._numbers), job))
                else:
                    self._lanes.add(lane, job)
            self._start_runners()
        if held:
            # What stands behind a record that is not due yet is due even later.
            self._paused_until |= held
            self._consumer.pause(held)

    def _wake(self, now: float) -> None:
        with self._lock:
            while self._delayed and self._delayed[0][0] <= now:
                _, _, job = heapq.heappop(self._delayed)
                self._lanes.again(job.lane, job)
            self._start_runners()
        due = [place for place, until in self._paused_until.items() if until <= now]
        for place in due:
            del self._paused_until[place]
        if due and not self._is_full:
            self._consumer.resume(due)

    def _ensure_topics(self) -> None:
        options = self._options
        wanted = {name: topic for topic in options.topics for name in options.retries.topics(topic)}
        if options.dead_letters is not None:
            wanted[options.dead_letters] = options.topics[0]
        ensure_topics(self._bootstrap, wanted, options.settings)

    def _make_settler(self) -> Settler:
        options = self._options
        if options.is_transactional:
            return Transactional(
                self._consumer,
                self._progress,
                self._lock,
                bootstrap=self._bootstrap,
                group=options.group,
                instance=options.instance,
                timeout_s=options.transaction_timeout_s,
                settings=options.settings,
            )
        kind = AtMostOnce if options.delivery == "at_most_once" else AtLeastOnce
        return kind(self._consumer, self._sender, self._progress, self._lock, self._fail)

    def _make_runners(self) -> Runners:
        if self._handler.is_async:
            return Tasks(self._work_async)
        return Threads(self._work, self._options.concurrency)

    def _sender(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._bootstrap, linger_ms=1, settings=self._options.settings)
            return self._producer

    # Rebalances, inside poll

    def _assigned(self, places: Sequence[TopicPartition]) -> None:
        with self._lock:
            for place in places:
                self._progress[place] = Progress()
        if self._is_full:
            self._consumer.pause(places)

    def _revoked(self, places: Sequence[TopicPartition]) -> None:
        if self._is_over:
            return
        self._drain(places)
        self._let_go(places)

    def _lost(self, places: Sequence[TopicPartition]) -> None:
        if self._is_over:
            return
        LOG.warning("lost without warning: %s; what was under way there will run again elsewhere", places)
        self._drop(places, keep_gaps=False)
        self._let_go(places)

    def _drop(self, places: Sequence[TopicPartition], *, keep_gaps: bool) -> None:
        """Forget the records of these partitions that have not been started, or wait for another try.

        With `keep_gaps` those stay that stand before one that was started: if they run too, nothing runs twice.
        """
        gone = frozenset(places)
        with self._lock:
            waiting = [job for _, _, job in self._delayed if job.place in gone]
            self._delayed = [each for each in self._delayed if each[2].place not in gone]
            heapq.heapify(self._delayed)
            # Who stands behind a record that will run elsewhere must not overtake it here.
            closed = {job.lane for job in waiting if job.lane is not None}
            self._lanes.drop(
                lambda job: (
                    job.place in gone
                    and not (keep_gaps and job.lane not in closed and job.message.offset < job.progress.furthest)
                )
            )
            for lane in closed:
                self._lanes.release(lane)

    def _drain(self, places: Sequence[TopicPartition]) -> None:
        """Before these are given away: finish what runs, close the gaps before it, commit."""
        timeout_s = self._options.stop_timeout_s
        gone = frozenset(places)
        deadline = time.monotonic() + timeout_s
        while True:
            # Again and again, because a record that fails meanwhile joins those that wait.
            self._drop(places, keep_gaps=True)
            with self._lock:
                if self._lock.wait_for(lambda: self._is_quiet(gone), DRAIN_CHECK_SECONDS):
                    break
            if time.monotonic() > deadline:
                LOG.warning("a handler still runs after %g s; its record will run again", timeout_s)
                break
        self._drop(places, keep_gaps=False)
        self._settler.flush(timeout_s)
        self._settler.settle()

    def _is_quiet(self, places: Set[TopicPartition]) -> bool:
        if any(self._running[each] for each in places):
            return False
        return self._failure is not None or not self._lanes.has(lambda job: job.place in places)

    def _let_go(self, places: Sequence[TopicPartition]) -> None:
        with self._lock:
            for place in places:
                self._progress.pop(place, None)
                self._paused_until.pop(place, None)
        self._settler.forget(places)

    # Running handlers

    def _start_runners(self) -> None:
        wanted = min(self._options.concurrency - self._runners, self._lanes.ready_count())
        for _ in range(0 if self._is_over or self._failure else wanted):
            self._runners += 1
            self._runner_pool.start_one()

    def _take(self) -> Job | None:
        """The next record for a runner; a runner that gets none ends."""
        with self._lock:
            job = None if self._is_over or self._failure else self._lanes.take()
            if job is None:
                self._runners -= 1
                return None
            self._running[job.place] += 1
            job.progress.furthest = max(job.progress.furthest, job.message.offset)
            job.attempts += 1
            return job

    def _work(self) -> None:
        while job := self._take():
            try:
                outgoing = self._attempt(job)
            except Exception as error:
                self._conclude(job, error, [])
            else:
                self._conclude(job, None, outgoing)

    async def _work_async(self) -> None:
        while job := self._take():
            try:
                outgoing = await self._handler.run_async(job.message)
            except Exception as error:
                self._conclude(job, error, [])
            else:
                self._conclude(job, None, outgoing)

    def _attempt(self, job: Job) -> list[Send]:
        store = self._options.processed
        if store is None:
            return self._handler.run(job.message)
        with store.once(self._record_id(job)) as unit:
            if unit is None:
                self.stats.skipped += 1
                return []
            # Sent before the record is noted as done: a crash in between sends twice rather than never.
            futures = [send(self._sender(), each) for each in self._handler.run(job.message, unit)]
            for future in futures:
                future.result(SEND_SECONDS)
        return []

    def _record_id(self, job: Job) -> str:
        chosen = self._options.record_id
        return f"{self._options.group}/{chosen(job.message) if chosen else job.origin}"

    def _conclude(self, job: Job, error: Exception | None, outgoing: list[Send]) -> None:
        """After a try: finished, to be tried again, or dead."""
        keeps_lane = False
        try:
            if error is not None and self._waits_in_memory(job, error):
                keeps_lane = self._delay(job)
            elif self._is_ours(job):
                self._settler.finished(job, outgoing if error is None else [self._sent_away(job, error)])
                self.stats.processed += error is None
        except Exception as fault:
            # Nothing is committed past this record, and nothing of its key runs before it does.
            keeps_lane = True
            self._fail(fault)
        finally:
            with self._lock:
                self._running[job.place] -= 1
                if not keeps_lane:
                    self._lanes.release(job.lane)
                self._start_runners()
                self._lock.notify_all()

    def _waits_in_memory(self, job: Job, error: Exception) -> bool:
        if not is_worth_another_try(self._options, job, error):
            return False
        LOG.info("%s failed (try %d), will be tried again: %r", job.origin, job.attempts, error)
        self.stats.retried += 1
        return not self._options.retries.waits_in_topic(job.attempts)

    def _sent_away(self, job: Job, error: Exception) -> Send:
        """The failed record as it goes to a retry topic or to the dead letters."""
        if is_worth_another_try(self._options, job, error):
            return to_retry_topic(self._options, job)
        letter = to_dead_letters(self._options, job, error)
        self.stats.dead += 1
        return letter

    def _delay(self, job: Job) -> bool:
        """Spend the time to the next try in memory. Whether the lane is kept for it meanwhile."""
        retries = self._options.retries
        with self._lock:
            if not self._is_ours(job):
                return False
            keeps_lane = retries.order == "key"
            due = time.monotonic() + retries.delay_s(job.attempts)
            waiting = job if keeps_lane else replace(job, lane=None)
            heapq.heappush(self._delayed, (due, next(self._numbers), waiting))
            return keeps_lane

    def _is_ours(self, job: Job) -> bool:
        return self._progress.get(job.place) is job.progress

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise this."""
        with self._lock:
            self._failure = self._failure or error
            self._stopping = True
