"""What a running worker is: one polling thread that takes records, settles and keeps the group; handlers beside it.

A record is in flight from `_accept` until its offset is settled: it waits in a lane, runs, maybe waits for its next
try, and finishes with what it wants sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.base.ids import TopicPartition
from millpond.client.call_thread import CallThread
from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.dead_letters import error_name
from millpond.client.errors import AlreadyProcessed, BufferFull, Closed, SendFailed, StoreFailed, Timeout
from millpond.client.handler import Handler
from millpond.client.idleness import GroupWait, Idleness
from millpond.client.in_flight import InFlight
from millpond.client.message import Message, Send, partition_of
from millpond.client.options import Options
from millpond.client.ordered_sends import BATCH_REFUSALS, send
from millpond.client.outcomes import is_worth_another_try, to_dead_letters, to_retry_topic
from millpond.client.own_topics import ANSWER_SECONDS, ensure_topics
from millpond.client.producer import Producer
from millpond.client.progress import Job
from millpond.client.retry import is_redriven, read_new, read_retried
from millpond.client.runners import Runners, Tasks, Threads
from millpond.client.settlers import RECORD_BYTES_MAX, REFUSED_SENDS, AtLeastOnce, AtMostOnce, Settler
from millpond.client.transactions import Transactional

if TYPE_CHECKING:
    from millpond.client.traces import TracedHandler

POLL_SECONDS_MAX = 0.05
POLL_RECORDS_MAX = 500
FULL_SECONDS = 0.5
DRAIN_CHECK_SECONDS = 0.1
SEND_SECONDS = 60.0
DELIVERY_SECONDS = 120.0
BATCH_BYTES = 1_000_000
STORE_TRIES = 15
HEARTBEAT_MS = 1_000
STORE_PAUSE_SECONDS_MAX = 5.0


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
        self._handler: Handler | TracedHandler = _traced(handler, options.group) if options.tracing else handler
        self._bootstrap = bootstrap
        self._retry_topics = options.retry_topics()
        self._in_flight = InFlight(self._retry_topics)
        self._lock = self._in_flight.mutex
        self._runner_count = 0
        self._runners: Runners | None = None
        self._paused_until: dict[TopicPartition, float] = {}
        self._is_full = False
        """Its partitions are paused until there is room again."""
        self._room_at = time.monotonic()
        self._refill = max(options.in_flight_max // 2, 1)
        """So many are taken at a time by a worker that was full, unless it could run them sooner."""
        self._stopping = False
        self._is_over = False
        """The last offsets are settled; what the group says and handlers do from now on changes nothing."""
        self._failure: BaseException | None = None
        self._producer: Producer | None = None
        self._single_producer: Producer | None = None
        self._batch_bytes = BATCH_BYTES
        """The most bytes in one batch; less where a topic takes no batches of that size."""
        self._has_own_topics = False
        """Whether the cluster answered when its retry topics and its dead-letter topic were to be created."""
        self._close_by: float | None = None
        """Until when the cluster is waited for, once the worker stops."""
        self._aside = CallThread("millpond-settling", self._close_deadline)

    # The polling thread

    def run(self, until_idle_s: float | None = None) -> None:
        """Until `stop`, a failure (raised), or, when asked for, until nothing has happened for a while."""
        options = self._options
        if self._stopping:
            return
        self._ensure_topics(ANSWER_SECONDS if until_idle_s is None else min(max(until_idle_s, 1.0), ANSWER_SECONDS))
        self._consumer = Consumer(
            options.group,
            [*options.topics, *self._retry_topics],
            bootstrap=self._bootstrap,
            from_=options.from_,
            # What waits there was in hand before: a group that begins at the end must not pass over it.
            whole_topics=self._retry_topics,
            protocol=options.protocol,
            instance=options.instance,
            session_timeout_s=None if options.protocol == "consumer" else options.classic_session_timeout_s,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            wait_for_topics=True,
            settings=_prompt_heartbeats(options) | dict(options.settings),
        )
        try:
            self._settler = self._aside.run(self._make_settler)
            self._runners = self._make_runners()
            try:
                try:
                    self._loop(until_idle_s)
                except Exception as error:
                    # A call that was given up because the worker stops is for `_finish_up` to report.
                    if not self._aside.is_abandoned:
                        self._fail(error)
                self._finish_up()
            finally:
                self._stopping = self._is_over = True
                self._runners.end(self._options.stop_timeout_s)
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

    def _close(self) -> None:
        """Leave the group and end the producers, within what is left of the time for that."""
        self._stopping = True
        deadline = self._close_deadline()
        assert deadline is not None
        try:
            if self._aside.is_abandoned:
                # In a process that lives on, it must not stay a member of the group when the cluster is back.
                self._aside.submit(self._consumer.close)
            else:
                self._aside.run(self._consumer.close)
        except Timeout as late:
            # Its session ends by itself.
            LOG.warning("the group %s was not left within the time to stop: %s", self._options.group, late)
        finally:
            self._aside.close()
            for producer in (self._producer, self._single_producer):
                if producer is not None:
                    self._close_producer(producer, max(deadline - time.monotonic(), 0.0))

    def _close_producer(self, producer: Producer, timeout_s: float) -> None:
        try:
            producer.close(timeout_s)
        except Timeout as late:
            self._fail(late)

    def _close_deadline(self) -> float | None:
        """Until when a stopping worker waits for the cluster; None while it is not stopping."""
        if not self._stopping:
            return None
        if self._close_by is None:
            self._close_by = time.monotonic() + self._options.close_timeout_s
            # The polling thread may be waiting for the cluster: what has not started must not start meanwhile.
            self._in_flight.drop(self._in_flight.partitions(), keep_gaps=True)
        return self._close_by

    def stop(self) -> None:
        """Ask it to end: what runs is finished and committed, what waits is left for others. From any thread."""
        # No lock: a signal may come while this very thread holds it.
        self._stopping = True

    def is_inside(self) -> bool:
        """Whether the caller is one of its handlers."""
        return self._runners is not None and self._runners.is_inside()

    def _loop(self, until_idle_s: float | None) -> None:
        settle_at = 0.0
        began = time.monotonic()
        idle = None if until_idle_s is None else Idleness(until_idle_s, self._consumer, self._options.topics, began)
        waiting = GroupWait(self._consumer, self._options, began)
        while not self._stopping:
            room = self._room()
            batch = self._consumer.poll(room, self._poll_seconds()) if room else []
            if not self._has_own_topics and self._consumer.has_joined:
                self._ensure_topics(ANSWER_SECONDS)
                self._has_own_topics = True
            now = time.monotonic()
            if batch and self._may_run(batch):
                self._accept(batch, now)
            self._wake(now)
            if now >= settle_at:
                self._aside.run(self._settler.settle)
                settle_at = now + self._options.commit_every_s
            waiting.look(now)
            if idle is not None and idle.is_over(now, is_working=bool(batch or len(self._in_flight))):
                return

    def _may_run(self, batch: Sequence[Message]) -> bool:
        if self._options.delivery != "at_most_once":
            return self._settler.before(batch)
        may_run: bool = self._aside.run(self._settler.before, batch)
        return may_run

    def _finish_up(self) -> None:
        """The records that run are finished, their offsets committed; a failed worker commits what was done."""
        try:
            self._drain(self._in_flight.partitions(), is_last=True)
            self._settler.close()
        except Timeout as late:
            self._settler.abandon()
            left = f"the worker stopped and left {self._settler.left()}: {late}; these records run again"
            LOG.warning("%s", left)
            self._fail(Timeout(left))
        except Exception as fault:
            if self._failure is None:
                raise
            LOG.warning("what was finished could not be committed and will run again: %s", fault)

    def _room(self) -> int:
        """How many records may be taken; waits a moment for room when there is none. 0: do not poll now.

        A worker that stays full pauses its partitions, because it must poll to stay a member of its group. Not at
        once: after a pause librdkafka takes up to a second to fetch again.
        """
        if not self._is_full:
            crowd = self._options.in_flight_max - self._refill
            self._in_flight.wait_for(self._has_room, self._poll_seconds(), crowd=crowd)
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
            self._consumer.resume([each for each in self._consumer.assignment() if each not in held])
        return max(1, min(free, POLL_RECORDS_MAX))

    def _has_room(self) -> bool:
        """Not for each that ends: to poll for one record costs as much as for hundreds. At once for who is idle."""
        free = self._free()
        is_idle = self._runner_count < self._options.concurrency
        return free >= self._refill or (free > 0 and is_idle) or self._stopping

    def _free(self) -> int:
        """Room under `in_flight_max`."""
        return self._options.in_flight_max - self._in_flight.crowd()

    def _poll_seconds(self) -> float:
        due = self._in_flight.next_due()
        left_s = POLL_SECONDS_MAX if due is None else due - time.monotonic()
        return min(max(left_s, 0.001), POLL_SECONDS_MAX)

    def _accept(self, batch: Sequence[Message], now: float) -> None:
        held: dict[TopicPartition, float] = {}
        new: list[Message] = []
        for message in batch:
            # What others may have written into these headers elsewhere is none of ours.
            longest_s = self._retry_topics.get(message.topic)
            if longest_s is None and not is_redriven(message):
                new.append(message)
                continue
            self._in_flight.add_new(new)
            new.clear()
            partition = partition_of(message)
            taken = read_new(message) if longest_s is None else read_retried(message)
            if taken.group not in (None, self._options.group):
                self._in_flight.skip(partition, message.offset)
                continue
            due = 0.0
            if longest_s is not None and taken.due_ms:
                # Never longer than it can have been meant: whoever wrote it may have had a wrong clock.
                left_s = min(taken.due_ms / 1000 - time.time(), longest_s)
                if left_s > 0:
                    due = now + left_s
                    held[partition] = max(held.get(partition, 0.0), due)
            self._in_flight.add(taken, due)
        self._in_flight.add_new(new)
        self._start_runners()
        if held:
            # What stands behind a record that is not due yet is due even later.
            self._paused_until |= held
            self._consumer.pause(held)

    def _wake(self, now: float) -> None:
        self._in_flight.wake(now)
        self._start_runners()
        due = [partition for partition, until in self._paused_until.items() if until <= now]
        for partition in due:
            del self._paused_until[partition]
        if due and not self._is_full:
            self._consumer.resume(due)

    def _ensure_topics(self, answer_s: float) -> None:
        options = self._options
        wanted = {name: topic for topic in options.topics for name in options.retries.topics(topic)}
        if options.dead_letters is not None:
            wanted[options.dead_letters] = options.topics[0]
        self._has_own_topics = ensure_topics(self._bootstrap, wanted, options.settings, answer_s)

    def _make_settler(self) -> Settler:
        options = self._options
        if options.is_transactional:
            return Transactional(
                self._consumer,
                self._in_flight,
                bootstrap=self._bootstrap,
                group=options.group,
                instance=options.instance,
                timeout_s=options.transaction_timeout_s,
                settings=options.settings,
            )
        kind = AtMostOnce if options.delivery == "at_most_once" else AtLeastOnce
        return kind(
            self._consumer,
            self._sender,
            self._in_flight,
            self._fail,
            self._single_sender,
            lambda: self._stopping,
            self._renew_sender,
        )

    def _make_runners(self) -> Runners:
        if self._handler.is_async:
            return Tasks(self._work_async, self._fail)
        return Threads(self._work)

    def _sender(self) -> Producer:
        with self._lock:
            if self._is_over:
                raise Closed("the worker has ended")
            if self._producer is None:
                settings = {"message.max.bytes": RECORD_BYTES_MAX} | _gapless(self._options)
                settings |= dict(self._options.settings)
                # A worker ends when a record is not sent, so it waits for a cluster that is away for longer.
                self._producer = Producer(
                    self._bootstrap,
                    linger_ms=1,
                    batch_bytes=self._batch_bytes,
                    delivery_timeout_s=DELIVERY_SECONDS,
                    settings=settings,
                )
            return self._producer

    def _renew_sender(self, refused_bytes: int | None) -> None:
        """The present producer has stopped at a batch that was refused, and can send nothing any longer."""
        if self._options.processed is not None:
            # No refusal stops this one, and handlers may be sending with it.
            return
        with self._lock:
            stopped, self._producer = self._producer, None
            if refused_bytes is not None:
                self._batch_bytes = max(min(self._batch_bytes, refused_bytes) // 2, 1)
        if stopped is not None:
            stopped.close()

    def _single_sender(self) -> Producer:
        """Sends each record in a batch of its own, so that what the broker refuses is that record."""
        with self._lock:
            if self._is_over:
                raise Closed("the worker has ended")
            if self._single_producer is None:
                settings = {"message.max.bytes": RECORD_BYTES_MAX} | dict(self._options.settings)
                self._single_producer = Producer(
                    self._bootstrap,
                    linger_ms=0,
                    delivery_timeout_s=DELIVERY_SECONDS,
                    settings=settings | {"batch.num.messages": 1},
                )
            return self._single_producer

    # Rebalances, inside poll

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._in_flight.assign(partitions)
        if self._is_full:
            self._consumer.pause(partitions)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        if self._is_over:
            return
        self._drain(partitions)
        self._let_go(partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        if self._is_over:
            return
        LOG.warning("lost without warning: %s; what was under way there will run again elsewhere", partitions)
        self._in_flight.drop(partitions, keep_gaps=False)
        self._let_go(partitions)

    def _drain(self, partitions: Sequence[TopicPartition], *, is_last: bool = False) -> None:
        """Before these are given away: finish what runs, close the gaps before it, commit."""
        timeout_s = self._options.stop_timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            # Again and again, because a record that fails meanwhile joins those that wait.
            self._in_flight.drop(partitions, keep_gaps=True)
            if self._in_flight.wait_for(lambda: self._is_quiet(partitions), DRAIN_CHECK_SECONDS):
                break
            if time.monotonic() > deadline:
                LOG.warning("a handler still runs after %g s; its record will run again", timeout_s)
                break
        self._in_flight.drop(partitions, keep_gaps=False)
        if not is_last:
            self._settler.hand_over_in_callback(partitions, timeout_s, self._aside.run)
            return
        # Handlers had their own time. From here on it is the cluster that is waited for.
        self._close_by = time.monotonic() + self._options.close_timeout_s
        self._aside.run(self._settler.hand_over, partitions, self._options.close_timeout_s)

    def _is_quiet(self, partitions: Sequence[TopicPartition]) -> bool:
        if self._in_flight.is_running(partitions):
            return False
        return self._failure is not None or not self._in_flight.is_waiting(partitions)

    def _let_go(self, partitions: Sequence[TopicPartition]) -> None:
        self._in_flight.revoke(partitions)
        for each in partitions:
            self._paused_until.pop(each, None)
        self._settler.forget(partitions)

    # Running handlers

    def _start_runners(self) -> None:
        with self._lock:
            if self._runners is None or self._is_over or self._failure:
                return
            for _ in range(min(self._options.concurrency - self._runner_count, self._in_flight.ready_count())):
                self._runner_count += 1
                self._runners.start_one()

    def _next(self) -> Job | None:
        """The next record for a runner; a runner that gets none ends."""
        with self._lock:
            job = None if self._is_over or self._failure else self._in_flight.start()
            if job is None:
                self._runner_count -= 1
                self._in_flight.tell_change(is_idle=True)
            return job

    def _next_after(self, job: Job) -> Job | None:
        """The same after a record that went well and wants nothing sent, as most do: the lock is taken once for both.

        Whoever stood behind it is taken by this runner, so that no other is needed for that.
        """
        with self._lock:
            if not self._is_over:
                self.stats.processed += self._in_flight.end_well(job)
            return self._next()

    def _work(self) -> None:
        job = self._next()
        while job is not None:
            try:
                outgoing = self._attempt(job)
            except BaseException as error:
                self._conclude(job, error, [])
            else:
                if not outgoing:
                    job = self._next_after(job)
                    continue
                self._conclude(job, None, outgoing)
            job = self._next()

    async def _work_async(self) -> None:
        job = self._next()
        while job is not None:
            try:
                outgoing = await self._handler.run_async(job.message)
            except BaseException as error:
                if self._is_over:
                    raise
                _uncancel()
                self._conclude(job, error, [])
            else:
                if not outgoing:
                    job = self._next_after(job)
                    continue
                self._conclude(job, None, outgoing)
            job = self._next()

    def _attempt(self, job: Job) -> list[Send]:
        store = self._options.processed
        if store is None:
            return self._handler.run(job.message)
        record_id = self._record_id(job)
        try:
            with ExitStack() as stack:
                try:
                    unit = stack.enter_context(store.once(record_id))
                except Exception as fault:
                    text = f"the store of processed ids cannot be asked for {record_id}: {fault}"
                    raise StoreFailed(text) from fault
                if unit is None:
                    self.stats.skipped += 1
                    return []
                # Sent before the record is noted as done: a crash in between sends twice rather than never.
                self._send_now(self._handler.run(job.message, unit))
        except AlreadyProcessed:
            self.stats.skipped += 1
        return []

    def _send_now(self, outgoing: list[Send]) -> None:
        try:
            for each, future in [(each, send(self._sender(), each)) for each in outgoing]:
                try:
                    future.result(SEND_SECONDS)
                except SendFailed as refusal:
                    if refusal.code not in BATCH_REFUSALS:
                        raise
                    # It may have been another record in its batch.
                    send(self._single_sender(), each).result(SEND_SECONDS)
        except (SendFailed, BufferFull, TimeoutError) as fault:
            if isinstance(fault, SendFailed) and fault.code in REFUSED_SENDS:
                raise
            raise _NotSent from fault

    def _record_id(self, job: Job) -> str:
        chosen = self._options.record_id
        return f"{self._options.group}/{chosen(job.message) if chosen else job.origin}"

    def _conclude(self, job: Job, error: BaseException | None, outgoing: list[Send]) -> None:
        """After a try: finished, to be tried again, or dead. What is no failure of the record ends the worker."""
        if self._is_over:
            return
        keeps_lane = False
        try:
            if isinstance(error, StoreFailed):
                keeps_lane = self._wait_for_store(job, error)
            elif isinstance(error, _NotSent):
                raise error.__cause__ or error
            elif error is not None and not isinstance(error, (Exception, asyncio.CancelledError)):
                raise error
            elif error is not None and self._waits_in_memory(job, error):
                due = time.monotonic() + self._options.retries.delay_s(job.attempts)
                keeps_lane = self._in_flight.run_again(job, due, keeps_lane=self._options.retries.order == "key")
            elif self._in_flight.is_ours(job):
                if error is None:
                    self._settler.finished(job, outgoing, partial(self._refused, job))
                elif is_worth_another_try(self._options, job, error):
                    later = to_retry_topic(self._options, job)
                    self._settler.finished(job, [later], lambda _: self._dead_letter(job, error))
                else:
                    self._settler.finished(job, [self._dead_letter(job, error)])
                with self._lock:
                    self.stats.processed += error is None
        except BaseException as fault:
            # Nothing is committed past this record, and nothing of its key runs before it does.
            keeps_lane = True
            self._fail(fault)
        finally:
            self._in_flight.end(job, keeps_lane=keeps_lane)
        try:
            self._start_runners()
        except RuntimeError as fault:
            # No further thread: this one must not go without a word, its place would be taken for ever.
            self._fail(fault)

    def _wait_for_store(self, job: Job, error: StoreFailed) -> bool:
        """Try the record again in a while, and do not count this. Whether its lane is kept for it."""
        job.attempts -= 1
        job.store_faults += 1
        if job.store_faults >= STORE_TRIES:
            raise error
        pause_s = min(0.1 * 2**job.store_faults, STORE_PAUSE_SECONDS_MAX)
        LOG.warning("%s waits %g s for the store of processed ids: %s", job.origin, pause_s, error)
        return self._in_flight.run_again(job, time.monotonic() + pause_s, keeps_lane=True)

    def _waits_in_memory(self, job: Job, error: BaseException) -> bool:
        if not is_worth_another_try(self._options, job, error):
            return False
        LOG.info("%s failed (try %d), will be tried again: %s", job.origin, job.attempts, error_name(error))
        with self._lock:
            self.stats.retried += 1
        return not self._options.retries.waits_in_topic(job.attempts)

    def _dead_letter(self, job: Job, error: BaseException) -> Send:
        """The failed record as it goes to the dead letters."""
        letter = to_dead_letters(self._options, job, error)
        with self._lock:
            self.stats.dead += 1
        return letter

    def _refused(self, job: Job, refusal: SendFailed) -> Send:
        """The dead letter of a record whose handler wanted something sent that no cluster will take."""
        letter = to_dead_letters(self._options, job, refusal)
        with self._lock:
            self.stats.processed -= 1
            self.stats.dead += 1
        return letter

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise this."""
        with self._lock:
            self._failure = self._failure or error
            self._stopping = True


class _NotSent(Exception):
    """The cluster did not take what a record wants sent: no fault of the record, which is no dead letter for it."""


def _traced(handler: Handler, group: str) -> TracedHandler:
    from millpond.client.traces import TracedHandler

    return TracedHandler(handler, group)


def _gapless(options: Options) -> dict[str, Any]:
    """Settings of a producer that stops at a refused batch instead of writing what was sent after it."""
    wanted = {"enable.idempotence": True, "enable.gapless.guarantee": True}
    is_idempotent = str(options.settings.get("enable.idempotence", True)).lower() in ("true", "1")
    acks = str(options.settings.get("acks", options.settings.get("request.required.acks", "all")))
    # Records with a store of processed ids are acknowledged one after the other.
    return wanted if options.processed is None and is_idempotent and acks in ("all", "-1") else {}


def _prompt_heartbeats(options: Options) -> dict[str, Any]:
    """A member learns of a rebalance with its next heartbeat, and those who join wait for it until then."""
    if options.protocol == "consumer":
        return {}
    session_ms = int(options.classic_session_timeout_s * 1000)
    return {"heartbeat.interval.ms": max(min(HEARTBEAT_MS, session_ms // 3), 1)}


def _uncancel() -> None:
    """A handler that cancelled its own task has failed; the runner in the same task goes on."""
    task = asyncio.current_task()
    assert task is not None
    for _ in range(task.cancelling()):
        task.uncancel()
