"""A running worker of a queue: each record is taken, handled and acknowledged by itself.

A record is held from `_accept` until its acknowledgement is confirmed; its lock is renewed meanwhile. A failed record
is released with the delay of its next attempt, so it blocks nothing and may run on another worker.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from functools import partial
from math import ceil
from threading import Condition
from typing import TYPE_CHECKING, Final

from millpond.client.committers import OnRefused, is_refusal, refused_letter
from millpond.client.connection import LOG
from millpond.client.dead_letters import ERROR_MESSAGE_CHARACTERS_MAX, error_name, error_text, type_name
from millpond.client.engine import Stats, traced, uncancel
from millpond.client.errors import ClientError, LockExpired, SendFailed, Timeout, UnknownTopic
from millpond.client.handler import Handler
from millpond.client.message import Send
from millpond.client.options import Options
from millpond.client.ordered_sends import OrderedSends
from millpond.client.outcomes import is_worth_another_try, to_dead_letters
from millpond.client.queue_jobs import QueueJob, QueueJobs, job_of
from millpond.client.runners import Runners, Tasks, Threads
from millpond.client.share_members import is_passing, open_member, warn_of_delay, wire_settings
from millpond.client.worker_producers import WorkerProducers
from millpond.client.worker_topics import ANSWER_SECONDS, ensure_topics
from millpond.remote.shares.group_settings import DEAD_LETTERS, DELIVERY_LIMIT
from millpond.remote.shares.held_record import Verdict

if TYPE_CHECKING:
    from millpond.client.traces import TracedHandler
    from millpond.remote.shares.share_consumer import ShareConsumer

POLL_SECONDS: Final = 0.1
POLL_RECORDS_MAX: Final = 500
GROUP_SECONDS_MAX: Final = 60.0
"""The time, on top of the idle time, for the group to assign partitions."""


class QueueEngine:
    def __init__(self, options: Options, handler: Handler, bootstrap: str | None) -> None:
        self.stats = Stats()
        self._options = options
        self._handler: Handler | TracedHandler = traced(handler, options.group) if options.tracing else handler
        self._bootstrap = bootstrap
        self._settings = wire_settings(bootstrap, options.settings)
        self._tries = options.retries.tries
        """No record is tried more often than the group delivers it."""
        self._rejects = False
        """Whether the broker writes the dead letters."""
        self._changed = Condition()
        """Guards what is below."""
        self._jobs = QueueJobs(options.concurrency, options.in_flight_max)
        self._runner_count = 0
        self._runners: Runners | None = None
        self._stopping = False
        self._is_over = False
        """Handlers that end from now on change nothing."""
        self._failure: BaseException | None = None
        self._producers = WorkerProducers(options, bootstrap)
        self._sends = OrderedSends(
            self._producers.batching, self._producers.single, self._producers.renew, self._fail
        )

    # The polling thread

    def run(self, until_idle_s: float | None = None) -> None:
        """Work until `stop`, a failure (raised), or `until_idle_s` without a record."""
        if self._stopping:
            return
        opened = self._open(is_patient=until_idle_s is None)
        if opened is None:
            return
        self._consumer = opened
        self._runners = Tasks(self._work_async, self._fail) if self._handler.is_async else Threads(self._work)
        deadline = None
        try:
            try:
                self._ensure_topics()
                self._loop(until_idle_s)
            except Exception as error:
                self._fail(error)
            deadline = self._finish_up()
        finally:
            self._stopping = self._is_over = True
            self._runners.end(self._options.stop_timeout_s)
            self._close(deadline or time.monotonic() + self._options.close_timeout_s)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Request a stop: running handlers finish and are acknowledged, the rest is released. From any thread."""
        # No lock: a signal may interrupt the thread that holds it.
        self._stopping = True

    def is_inside(self) -> bool:
        """Whether the caller is a handler of this worker."""
        return self._runners is not None and self._runners.is_inside()

    def _ensure_topics(self) -> None:
        options = self._options
        if options.dead_letters is not None:
            models = {options.dead_letters: options.topics[0]}
            ensure_topics(self._bootstrap, models, options.settings, ANSWER_SECONDS)

    def _open(self, *, is_patient: bool) -> ShareConsumer | None:
        """A member of the group; None if the worker was stopped while the cluster did not answer."""
        options = self._options
        assert isinstance(options.from_, str), "checked with the options"
        has_warned = False
        while True:
            try:
                consumer, about = open_member(
                    self._settings, options.group, options.topics, options.from_, renews=True
                )
                break
            except ClientError as fault:
                if not is_passing(fault) or not is_patient:
                    raise
                if self._stopping:
                    return None
                if not has_warned:
                    has_warned = True
                    LOG.warning("the worker cannot start yet (%s); retrying until the cluster answers", fault)
        self._rejects = options.dead_letters is None and bool(about.dead_letters)
        self._limit_tries(about.delivery_limit)
        if self._tries > 1 and not about.delays:
            warn_of_delay(options.group)
        return consumer

    def _limit_tries(self, limit: int | None) -> None:
        """The broker archives a record that it has delivered this often: before that it must be a dead letter."""
        if limit is None or limit >= self._tries:
            return
        group = self._options.group
        LOG.warning(
            "the group %s delivers a record at most %d times (%s), fewer than the %d tries of retries=: a record is "
            "given up after %d. To change that: millpond config set group %s %s=%d",
            *(group, limit, DELIVERY_LIMIT, self._tries, limit, group, DELIVERY_LIMIT, self._tries + 1),
        )
        self._tries = limit

    def _loop(self, until_idle_s: float | None) -> None:
        worked_at = time.monotonic()
        self._allow()
        while not self._stopping:
            for held in self._consumer.poll(POLL_RECORDS_MAX, POLL_SECONDS):
                self._accept(job_of(held))
            self._start_runners()
            if until_idle_s is None:
                continue
            now = time.monotonic()
            if len(self._jobs):
                worked_at = now
                self._consumer.forget_rounds()
            elif now - worked_at >= until_idle_s and self._is_idle(now - worked_at, until_idle_s):
                return

    def _is_idle(self, waited_s: float, until_idle_s: float) -> bool:
        """Whether the queue has nothing now. Raises if the wait cannot end."""
        consumer = self._consumer
        if consumer.is_drained():
            return True
        if consumer.down_seconds() >= until_idle_s:
            raise Timeout(f"cannot reach the cluster ({consumer.down_reason()})")
        if missing := consumer.missing_topics:
            raise UnknownTopic(f"there is no topic {', '.join(sorted(missing))}: create it, or correct its name")
        if waited_s >= until_idle_s + GROUP_SECONDS_MAX:
            raise Timeout(
                f"the cluster did not let this worker read its queue within {waited_s:.0f} s: see "
                f"`millpond group describe {self._options.group}`"
            )
        return False

    def _accept(self, job: QueueJob) -> None:
        if job.group not in (None, self._options.group):
            # Sent back from the dead letters for another group.
            self._consumer.acknowledge(job.held, Verdict.ACCEPT)
            with self._changed:
                self._jobs.add(job)
                self._jobs.drop(job)
            self._allow()
            return
        with self._changed:
            self._jobs.add(job)

    def _allow(self) -> None:
        """Let the consumer take as many records as there is room for."""
        with self._changed:
            if self._stopping:
                return
            change = self._jobs.room()
            if change:
                self._consumer.allow(change)

    def _finish_up(self) -> float:
        """Wait for running handlers, then for the cluster. Returns the deadline for the cluster."""
        options = self._options
        self._consumer.want(0)
        with self._changed:
            # The end of the session releases them, and they do not count as delivered.
            self._jobs.drop_ready()
            is_quiet = self._changed.wait_for(lambda: not self._jobs.running, options.stop_timeout_s)
            left = list(self._jobs.running)
            self._is_over = True
        deadline = time.monotonic() + options.close_timeout_s
        if not is_quiet:
            LOG.warning("handlers still run after %g s; their records are released", options.stop_timeout_s)
            for job in left:
                self._consumer.acknowledge(job.held, Verdict.RELEASE)
        with self._changed:
            is_settled = self._changed.wait_for(
                lambda: not self._jobs.settling_count, max(deadline - time.monotonic(), 0.0)
            )
            count = self._jobs.settling_count
        if not is_settled:
            text = f"the worker stopped and left {count} records that the cluster did not acknowledge: they run again"
            LOG.warning("%s", text)
            self._fail(Timeout(text))
        return deadline

    def _close(self, deadline: float) -> None:
        self._consumer.close(max(deadline - time.monotonic(), 0.1))
        try:
            self._producers.close(deadline)
        except Timeout as late:
            self._fail(late)

    # Running handlers

    def _start_runners(self) -> None:
        with self._changed:
            if self._runners is None or self._is_over or self._stopping:
                return
            for _ in range(min(self._options.concurrency - self._runner_count, self._jobs.ready_count)):
                self._runner_count += 1
                self._runners.start_one()

    def _next(self) -> QueueJob | None:
        """The next record for a runner; a runner that gets none ends."""
        with self._changed:
            job = None if self._stopping else self._jobs.start()
            if job is None:
                self._runner_count -= 1
            return job

    def _work(self) -> None:
        job = self._next()
        while job is not None:
            began = time.monotonic()
            try:
                outgoing = self._handler.run(job.message)
            except BaseException as error:
                self._conclude(job, began, error, [])
            else:
                self._conclude(job, began, None, outgoing)
            job = self._next()

    async def _work_async(self) -> None:
        job = self._next()
        while job is not None:
            began = time.monotonic()
            try:
                outgoing = await self._handler.run_async(job.message)
            except BaseException as error:
                if self._is_over:
                    raise
                uncancel()
                self._conclude(job, began, error, [])
            else:
                self._conclude(job, began, None, outgoing)
            job = self._next()

    def _conclude(self, job: QueueJob, began: float, error: BaseException | None, outgoing: list[Send]) -> None:
        """After an attempt: accept the record, release it for another one, or give it up."""
        with self._changed:
            if self._is_over:
                return
            self._jobs.settle(job, time.monotonic() - began)
            self._changed.notify_all()
        try:
            if error is None:
                self._send_then_accept(job, outgoing, partial(self._refused, job), is_dead=False)
            elif not isinstance(error, (Exception, asyncio.CancelledError)):
                raise error
            elif job.attempts < self._tries and is_worth_another_try(self._options, job, error):
                self._release(job, error)
            else:
                self._give_up(job, error)
        except BaseException as fault:
            self._end(job)
            self._fail(fault)
        self._allow()

    def _send_then_accept(self, job: QueueJob, outgoing: list[Send], on_refused: OnRefused, *, is_dead: bool) -> None:
        """Accept the record once all Sends are acknowledged: a crash in between repeats it rather than loses it."""
        left = len(outgoing)
        refusal: SendFailed | None = None
        if not left:
            self._acknowledge(job, Verdict.ACCEPT, is_dead=is_dead)
            return

        def sent(error: BaseException | None) -> None:
            nonlocal left, refusal
            with self._changed:
                left -= 1
                if is_refusal(error):
                    assert isinstance(error, SendFailed)
                    refusal, error = refusal or error, None
                is_last = left == 0
            if error is not None:
                # Not the record's fault: the worker ends, and the record is released.
                self._fail(error)
                self._end(job)
            elif is_last and refusal is not None:
                # Not on this thread: it reads the delivery reports, and would deadlock while the buffer is full.
                self._sends.run_later(partial(self._send_letter, job, on_refused, refusal))
            elif is_last:
                self._acknowledge(job, Verdict.ACCEPT, is_dead=is_dead)

        for done, each in enumerate(outgoing):
            try:
                self._sends.send(each, sent)
            except BaseException as error:
                for _ in outgoing[done:]:
                    sent(error)
                return

    def _send_letter(self, job: QueueJob, on_refused: OnRefused, refusal: SendFailed) -> None:
        try:
            letter = on_refused(refusal)
        except _Rejected:
            self._reject(job, refusal)
        except BaseException as fault:
            self._end(job)
            self._fail(fault)
        else:
            self._send_then_accept(job, [letter], refused_letter(letter), is_dead=True)

    def _refused(self, job: QueueJob, refusal: SendFailed) -> Send:
        """The dead letter of a record whose Send was refused."""
        if self._rejects:
            raise _Rejected
        return to_dead_letters(self._options, job, refusal)

    def _release(self, job: QueueJob, error: BaseException) -> None:
        delay_s = self._options.retries.delay_s(job.attempts)
        LOG.info("%s failed (try %d), will be tried again: %s", job.origin, job.attempts, error_name(error))
        with self._changed:
            self.stats.retried += 1
        delay_ms = ceil(delay_s * 1000)
        self._acknowledge(job, Verdict.RELEASE, delay_ms=delay_ms, error=error)

    def _give_up(self, job: QueueJob, error: BaseException) -> None:
        if self._rejects:
            self._reject(job, error)
            return
        letter = to_dead_letters(self._options, job, error)
        self._send_then_accept(job, [letter], refused_letter(letter), is_dead=True)

    def _reject(self, job: QueueJob, error: BaseException) -> None:
        LOG.warning("%s is rejected (%s of the group): %s", job.origin, DEAD_LETTERS, error_name(error))
        self._acknowledge(job, Verdict.REJECT, error=error, is_dead=True)

    # Acknowledging

    def _acknowledge(
        self,
        job: QueueJob,
        verdict: Verdict,
        *,
        delay_ms: int = 0,
        error: BaseException | None = None,
        is_dead: bool = False,
    ) -> None:
        outcome = self._consumer.acknowledge(
            job.held,
            verdict,
            delay_ms=delay_ms,
            error_type="" if error is None else type_name(error),
            error_message="" if error is None else error_text(error)[:ERROR_MESSAGE_CHARACTERS_MAX],
        )
        outcome.add_done_callback(partial(self._acknowledged, job, verdict, is_dead))

    def _acknowledged(self, job: QueueJob, verdict: Verdict, is_dead: bool, outcome: Future[None]) -> None:
        fault = outcome.exception()
        with self._changed:
            if fault is None:
                self.stats.dead += is_dead
                self.stats.processed += verdict is Verdict.ACCEPT and not is_dead
            else:
                self.stats.expired += 1
        if isinstance(fault, LockExpired):
            LOG.warning("%s", fault)
        elif fault is not None:
            self._fail(fault)
        self._end(job)

    def _end(self, job: QueueJob) -> None:
        with self._changed:
            self._jobs.end(job)
            self._changed.notify_all()
        self._allow()

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise this."""
        with self._changed:
            self._failure = self._failure or error
            self._stopping = True


class _Rejected(Exception):
    """The broker writes the dead letter."""
