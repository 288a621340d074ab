"""A running worker: one thread polls, commits and keeps the group membership, while handlers run on others.

A record is in flight from `_accept` until its offset is committed: it waits in a lane, runs, may wait for its next
attempt, and finishes with its Sends.
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
from millpond.client.committers import REFUSED_SENDS, AtLeastOnce, AtMostOnce, Committer
from millpond.client.connection import LOG
from millpond.client.consumer import Consumer
from millpond.client.dead_letters import error_name
from millpond.client.errors import AlreadyProcessed, BufferFull, SendFailed, StoreFailed, Timeout
from millpond.client.handler import Handler
from millpond.client.idle_timeout import GroupWait, IdleTimeout
from millpond.client.in_flight import InFlight
from millpond.client.message import Message, Send, partition_of
from millpond.client.options import Options
from millpond.client.ordered_sends import OrderedSends
from millpond.client.outcomes import is_worth_another_try, to_dead_letters, to_retry_topic
from millpond.client.progress import Job
from millpond.client.retry import is_redriven, read_new, read_retried
from millpond.client.runners import Runners, Tasks, Threads
from millpond.client.transactions import Transactional
from millpond.client.worker_producers import WorkerProducers
from millpond.client.worker_topics import ANSWER_SECONDS, ensure_topics

if TYPE_CHECKING:
    from millpond.client.traces import TracedHandler

POLL_SECONDS_MAX = 0.05
POLL_RECORDS_MAX = 500
FULL_SECONDS = 0.5
DRAIN_CHECK_SECONDS = 0.1
SEND_SECONDS = 60.0
STORE_TRIES = 15
HEARTBEAT_MS = 1_000
STORE_PAUSE_SECONDS_MAX = 5.0


@dataclass(slots=True)
class Stats:
    """Counts since the worker was started."""

    processed: int = 0
    retried: int = 0
    dead: int = 0
    skipped: int = 0
    """Records that were already in the store of processed ids."""
    expired: int = 0
    """Records of a queue that were handled, but whose lock was lost meanwhile: they are delivered again."""


class Engine:
    def __init__(self, options: Options, handler: Handler, bootstrap: str | None) -> None:
        self.stats = Stats()
        self._options = options
        self._handler: Handler | TracedHandler = traced(handler, options.group) if options.tracing else handler
        self._bootstrap = bootstrap
        self._retry_topics = options.retry_topics()
        self._in_flight = InFlight(self._retry_topics)
        self._lock = self._in_flight.mutex
        self._runner_count = 0
        self._runners: Runners | None = None
        self._paused_until: dict[TopicPartition, float] = {}
        self._is_full = False
        """Its partitions are paused until there is capacity again."""
        self._had_capacity_at = time.monotonic()
        self._refill = max(options.in_flight_max // 2, 1)
        """A full worker waits for this much capacity before it polls, unless a runner is idle."""
        self._stopping = False
        self._is_over = False
        """The last offsets are committed; rebalances and handlers change nothing from now on."""
        self._failure: BaseException | None = None
        self._producers = WorkerProducers(options, bootstrap)
        self._sends = OrderedSends(
            self._producers.batching, self._producers.single, self._producers.renew, self._fail
        )
        self._has_worker_topics = False
        """Whether the cluster answered the request to create the retry and dead-letter topics."""
        self._close_by: float | None = None
        """The deadline for the cluster once the worker stops."""
        self._call_thread = CallThread("millpond-commit", self._close_deadline)

    # The polling thread

    def run(self, until_idle_s: float | None = None) -> None:
        """Work until `stop`, a failure (raised), or `until_idle_s` without a record."""
        options = self._options
        if self._stopping:
            return
        self._ensure_topics(ANSWER_SECONDS if until_idle_s is None else min(max(until_idle_s, 1.0), ANSWER_SECONDS))
        self._consumer = Consumer(
            options.group,
            [*options.topics, *self._retry_topics],
            bootstrap=self._bootstrap,
            from_=options.from_,
            # A group that begins at the end must not skip records that already wait for a retry.
            from_beginning_topics=self._retry_topics,
            protocol=options.protocol,
            instance=options.instance,
            session_timeout_s=None if options.protocol == "consumer" else options.classic_session_timeout_s,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            wait_for_topics=True,
            settings=_heartbeat_settings(options) | dict(options.settings),
        )
        try:
            self._committer = self._call_thread.run(self._make_committer)
            self._runners = self._make_runners()
            try:
                try:
                    self._loop(until_idle_s)
                except Exception as error:
                    # `_finish_up` reports a call that was abandoned because the worker stops.
                    if not self._call_thread.is_abandoned:
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
        """Leave the group and close the producers before the deadline."""
        self._stopping = True
        deadline = self._close_deadline()
        assert deadline is not None
        try:
            if self._call_thread.is_abandoned:
                # If the process goes on, it must not be a group member when the cluster is back.
                self._call_thread.submit(self._consumer.close)
            else:
                self._call_thread.run(self._consumer.close)
        except Timeout as late:
            # The session expires by itself.
            LOG.warning("could not leave the group %s before the stop deadline: %s", self._options.group, late)
        finally:
            self._call_thread.close()
            try:
                self._producers.close(deadline)
            except Timeout as late:
                self._fail(late)

    def _close_deadline(self) -> float | None:
        """The time until which a stopping worker waits for the cluster; None before it stops."""
        if not self._stopping:
            return None
        if self._close_by is None:
            self._close_by = time.monotonic() + self._options.close_timeout_s
            # The polling thread may be waiting for the cluster: no further handler must start meanwhile.
            self._in_flight.drop(self._in_flight.partitions(), keep_gaps=True)
        return self._close_by

    def stop(self) -> None:
        """Request a stop: running handlers finish and are committed, the rest is left. Callable from any thread."""
        # No lock: a signal may interrupt the thread that holds it.
        self._stopping = True

    def is_inside(self) -> bool:
        """Whether the caller is a handler of this worker."""
        return self._runners is not None and self._runners.is_inside()

    def _loop(self, until_idle_s: float | None) -> None:
        next_commit_at = 0.0
        began = time.monotonic()
        idle = (
            None if until_idle_s is None else IdleTimeout(until_idle_s, self._consumer, self._options.topics, began)
        )
        waiting = GroupWait(self._consumer, self._options, began)
        while not self._stopping:
            capacity = self._wait_for_capacity()
            batch = self._consumer.poll(capacity, self._poll_seconds()) if capacity else []
            if not self._has_worker_topics and self._consumer.has_joined:
                self._ensure_topics(ANSWER_SECONDS)
                self._has_worker_topics = True
            now = time.monotonic()
            if batch and self._may_run(batch):
                self._accept(batch)
            self._resume_due(now)
            if now >= next_commit_at:
                self._call_thread.run(self._committer.commit_finished)
                next_commit_at = now + self._options.commit_every_s
            waiting.look(now)
            if idle is not None and idle.is_over(now, is_working=bool(batch or len(self._in_flight))):
                return

    def _may_run(self, batch: Sequence[Message]) -> bool:
        if self._options.delivery != "at_most_once":
            return self._committer.may_process(batch)
        may_run: bool = self._call_thread.run(self._committer.may_process, batch)
        return may_run

    def _finish_up(self) -> None:
        """Wait for running handlers and commit; a failed worker commits what is finished."""
        try:
            self._drain(self._in_flight.partitions(), is_last=True)
            self._committer.close()
        except Timeout as late:
            self._committer.abandon()
            left = self._committer.uncommitted_summary()
            text = f"the worker stopped and left {left}: {late}; these records run again"
            LOG.warning("%s", text)
            self._fail(Timeout(text))
        except Exception as fault:
            if self._failure is None:
                raise
            LOG.warning("finished records could not be committed and will run again: %s", fault)

    def _wait_for_capacity(self) -> int:
        """How many records may be taken, after a short wait if there is no capacity. 0: do not poll now.

        A worker that stays full pauses its partitions, because it must poll to stay a group member. Not at once:
        after a pause librdkafka takes up to a second to fetch again.
        """
        if not self._is_full:
            wake_at_count = self._options.in_flight_max - self._refill
            self._in_flight.wait_for(self._has_capacity, self._poll_seconds(), wake_at_count=wake_at_count)
        free = self._free_slots()
        now = time.monotonic()
        if free > 0:
            self._had_capacity_at = now
        if free <= 0 and not self._is_full:
            if now - self._had_capacity_at < FULL_SECONDS:
                return 0
            self._is_full = True
            self._consumer.pause()
        elif self._is_full and free >= max(self._options.in_flight_max // 2, 1):
            self._is_full = False
            held = self._paused_until
            self._consumer.resume([each for each in self._consumer.assignment() if each not in held])
        return max(1, min(free, POLL_RECORDS_MAX))

    def _has_capacity(self) -> bool:
        """Not after every record: polling for one costs as much as for hundreds. At once if a runner is idle."""
        free = self._free_slots()
        is_idle = self._runner_count < self._options.concurrency
        return free >= self._refill or (free > 0 and is_idle) or self._stopping

    def _free_slots(self) -> int:
        """How many more records may be in flight."""
        return self._options.in_flight_max - self._in_flight.taken_count()

    def _poll_seconds(self) -> float:
        due = self._in_flight.next_due()
        left_s = POLL_SECONDS_MAX if due is None else due - time.monotonic()
        return min(max(left_s, 0.001), POLL_SECONDS_MAX)

    def _accept(self, batch: Sequence[Message]) -> None:
        held: dict[TopicPartition, float] = {}
        new: list[Message] = []
        for message in batch:
            # In other topics these headers are not ours.
            longest_s = self._retry_topics.get(message.topic)
            if longest_s is None and not is_redriven(message):
                new.append(message)
                continue
            self._in_flight.add_new(new)
            new.clear()
            partition = partition_of(message)
            record = read_new(message) if longest_s is None else read_retried(message)
            if record.group not in (None, self._options.group):
                self._in_flight.skip(partition, message.offset)
                continue
            due = 0.0
            if longest_s is not None and record.due_ms:
                # Never longer than the delay itself: the writer's clock may have been wrong.
                left_s = min(record.due_ms / 1000 - time.time(), longest_s)
                if left_s > 0:
                    # Not the time of the poll: the record would run early by as long as the rest of the batch took.
                    due = time.monotonic() + left_s
                    held[partition] = max(held.get(partition, 0.0), due)
            self._in_flight.add(record, due)
        self._in_flight.add_new(new)
        self._start_runners()
        if held:
            # Records behind one that is not due yet are due even later.
            self._paused_until |= held
            self._consumer.pause(held)

    def _resume_due(self, now: float) -> None:
        self._in_flight.wake(now)
        self._start_runners()
        due = [partition for partition, until in self._paused_until.items() if until <= now]
        for partition in due:
            del self._paused_until[partition]
        if due and not self._is_full:
            self._consumer.resume(due)

    def _ensure_topics(self, answer_s: float) -> None:
        options = self._options
        models = {name: topic for topic in options.topics for name in options.retries.topics(topic)}
        if options.dead_letters is not None:
            models[options.dead_letters] = options.topics[0]
        self._has_worker_topics = ensure_topics(self._bootstrap, models, options.settings, answer_s)

    def _make_committer(self) -> Committer:
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
        return kind(self._consumer, self._sends, self._in_flight, self._fail, lambda: self._stopping)

    def _make_runners(self) -> Runners:
        if self._handler.is_async:
            return Tasks(self._work_async, self._fail)
        return Threads(self._work)

    # Rebalances, inside poll

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._in_flight.assign(partitions)
        if self._is_full:
            self._consumer.pause(partitions)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        if self._is_over:
            return
        self._drain(partitions)
        self._release(partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        if self._is_over:
            return
        LOG.warning("lost partitions %s; their records in flight will run again elsewhere", partitions)
        self._in_flight.drop(partitions, keep_gaps=False)
        self._release(partitions)

    def _drain(self, partitions: Sequence[TopicPartition], *, is_last: bool = False) -> None:
        """Before these are revoked: finish running handlers and the records before them, then commit."""
        timeout_s = self._options.stop_timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            # Repeatedly, because a record that fails meanwhile is delayed again.
            self._in_flight.drop(partitions, keep_gaps=True)
            if self._in_flight.wait_for(lambda: self._is_quiet(partitions), DRAIN_CHECK_SECONDS):
                break
            if time.monotonic() > deadline:
                LOG.warning("a handler is still running after %g s; its record will run again", timeout_s)
                break
        self._in_flight.drop(partitions, keep_gaps=False)
        if not is_last:
            self._committer.hand_over_in_callback(partitions, timeout_s, self._call_thread.run)
            return
        # The handlers' time is over; this deadline is for the cluster.
        self._close_by = time.monotonic() + self._options.close_timeout_s
        self._call_thread.run(self._committer.hand_over, partitions, self._options.close_timeout_s)

    def _is_quiet(self, partitions: Sequence[TopicPartition]) -> bool:
        if self._in_flight.is_running(partitions):
            return False
        return self._failure is not None or not self._in_flight.is_waiting(partitions)

    def _release(self, partitions: Sequence[TopicPartition]) -> None:
        self._in_flight.revoke(partitions)
        for each in partitions:
            self._paused_until.pop(each, None)
        self._committer.forget(partitions)

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
                self._in_flight.notify_change(is_idle=True)
            return job

    def _next_after(self, job: Job) -> Job | None:
        """Finish this job (no Sends) and return the next, under one lock.

        The next record of its lane goes to this runner, so that no other has to be started.
        """
        with self._lock:
            if not self._is_over:
                self.stats.processed += self._in_flight.end_finished(job)
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
                uncancel()
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
                    text = f"cannot look up {record_id} in the store of processed ids: {fault}"
                    raise StoreFailed(text) from fault
                if unit is None:
                    self.stats.skipped += 1
                    return []
                # Send before the id is stored: a crash in between sends twice rather than never.
                self._send_now(self._handler.run(job.message, unit))
        except AlreadyProcessed:
            self.stats.skipped += 1
        return []

    def _send_now(self, outgoing: list[Send]) -> None:
        """Send these and wait until they are acknowledged."""
        try:
            for outcome in [self._sends.future(each) for each in outgoing]:
                outcome.result(SEND_SECONDS)
        except (SendFailed, BufferFull, TimeoutError) as fault:
            if isinstance(fault, SendFailed) and fault.code in REFUSED_SENDS:
                raise
            raise _NotSent from fault

    def _record_id(self, job: Job) -> str:
        chosen = self._options.record_id
        return f"{self._options.group}/{chosen(job.message) if chosen else job.origin}"

    def _conclude(self, job: Job, error: BaseException | None, outgoing: list[Send]) -> None:
        """After an attempt: finish the record, retry it or send a dead letter. Other failures end the worker."""
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
                    self._committer.record_finished(job, outgoing, partial(self._refused, job))
                elif is_worth_another_try(self._options, job, error):
                    later = to_retry_topic(self._options, job)
                    self._committer.record_finished(job, [later], lambda _: self._dead_letter(job, error))
                else:
                    self._committer.record_finished(job, [self._dead_letter(job, error)])
                with self._lock:
                    self.stats.processed += error is None
        except BaseException as fault:
            # Nothing is committed past this record, and no later record of its key runs first.
            keeps_lane = True
            self._fail(fault)
        finally:
            self._in_flight.end(job, keeps_lane=keeps_lane)
        try:
            self._start_runners()
        except RuntimeError as fault:
            # No further thread can be started: without the failure this runner's slot would be lost.
            self._fail(fault)

    def _wait_for_store(self, job: Job, error: StoreFailed) -> bool:
        """Retry later without counting the attempt. Whether the lane is kept."""
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
        letter = to_dead_letters(self._options, job, error)
        with self._lock:
            self.stats.dead += 1
        return letter

    def _refused(self, job: Job, refusal: SendFailed) -> Send:
        """The dead letter of a record whose Send was refused."""
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
    """The cluster did not take a record's Send. Not the record's fault, so no dead letter."""


def traced(handler: Handler, group: str) -> TracedHandler:
    from millpond.client.traces import TracedHandler

    return TracedHandler(handler, group)


def _heartbeat_settings(options: Options) -> dict[str, Any]:
    """A member learns of a rebalance from its next heartbeat, and joining members wait until then."""
    if options.protocol == "consumer":
        return {}
    session_ms = int(options.classic_session_timeout_s * 1000)
    return {"heartbeat.interval.ms": max(min(HEARTBEAT_MS, session_ms // 3), 1)}


def uncancel() -> None:
    """A handler that cancelled its own task has failed, but the runner in the same task goes on."""
    task = asyncio.current_task()
    assert task is not None
    for _ in range(task.cancelling()):
        task.uncancel()
