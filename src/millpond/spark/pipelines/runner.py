"""Run a pipeline: start its jobs, watch them, stop them gracefully and report why one failed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millpond.spark.pipelines.context import JobContext, dead_letter_topics, is_first, kafka_options, letters_of
from millpond.spark.pipelines.ends import EndsWatch
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.lock import lock_pipeline
from millpond.spark.pipelines.metrics import Metrics
from millpond.spark.pipelines.plan import Plan, Query
from millpond.spark.pipelines.progress import JobFigures, JobWatch, Snapshot, State, as_dict, read_offsets
from millpond.spark.pipelines.reasons import reason_of
from millpond.spark.pipelines.session import LOCAL, log_file, make_session
from millpond.spark.pipelines.status import write_status
from millpond.spark.pipelines.stop_request import StopRequest
from millpond.spark.pipelines.tables import Declaration, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS: Final = 0.25
"""How often the jobs are checked."""

PUBLISH_SECONDS: Final = 1.0
"""How often the status is written and shown."""

GRACE_SECONDS: Final = 10.0
"""How long a batch may run after a stop request; the next run repeats it."""

BEGIN_SECONDS: Final = 15.0
BEGINNING: Final = ("Initializing", "Getting offsets")
"""Spark's status messages of a query whose sources are not open yet."""

LATE_PROCESS: Final = "Python worker failed to connect back"
TRIES_MAX: Final = 8

LOG = logging.getLogger("millpond.spark")

Show = Callable[[Snapshot], None]


class PipelineFailed(Exception):
    """A job failed, and the pipeline stopped. The message says which and why."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.error or "the pipeline failed")
        self.snapshot = snapshot


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: `finished` (it was set to end when everything was read) or `stopped`, and its last figures."""

    snapshot: Snapshot

    @property
    def state(self) -> State:
        return self.snapshot.state


def run(
    pipeline: Declaration,
    *,
    master: str = "",
    conf: Mapping[str, str] | None = None,
    remote: str = "",
    once: bool = False,
    spark: SparkSession | None = None,
    show: Show | None = None,
    metrics: str = "",
    stopping: StopRequest | None = None,
    log_level: str = "ERROR",
) -> Outcome:
    """Run until every job has ended, one has failed (PipelineFailed), or a stop is requested.

    `once` processes what is available now and ends. A given `spark` session is left open.
    """
    stopping = stopping or StopRequest()
    folder = pipeline.folder
    master = master or pipeline.spark.master or LOCAL
    start = Snapshot(
        name=pipeline.name,
        state="starting",
        pid=os.getpid(),
        started_ms=_now_ms(),
        at_ms=_now_ms(),
        jobs=tuple(first_figures(each) for each in pipeline.jobs),
        master=remote or ("of its caller" if spark is not None else master),
        source=", ".join(pipeline.source.topic) or pipeline.source.pattern if pipeline.source else "",
        folder=str(folder),
        log=str(log_file(folder)) if spark is None and not remote else "",
    )
    with ExitStack() as stack:
        stack.enter_context(lock_pipeline(folder, pipeline.name))
        served = stack.enter_context(Metrics(metrics)) if metrics else None
        start = replace(start, metrics=served.address if served is not None else "")
        publisher = SnapshotPublisher(folder, start, show, served)
        stack.enter_context(stopping.listening(lambda: publisher.publish(replace(publisher.last, state="stopped"))))
        publisher.publish(start)
        stack.enter_context(logging_to(folder))
        try:
            if spark is None:
                spark = make_session(
                    f"millpond {pipeline.name}",
                    master,
                    {**pipeline.spark.conf, **(conf or {})},
                    remote=remote,
                    folder=folder,
                    log_level=log_level,
                )
                stack.callback(_close, spark)
                # Spark has replaced the handler for Ctrl-C.
                stopping.listen()
            last = _run_jobs(Run(pipeline, spark, publisher, stopping, is_once=once), publisher)
        except BaseException as fault:
            publisher.publish(replace(publisher.last, state="failed", error=str(fault) or type(fault).__name__))
            raise
    if last.state == "failed":
        raise PipelineFailed(last)
    return Outcome(last)


def _run_jobs(jobs: Run, publisher: SnapshotPublisher) -> Snapshot:
    """Run the jobs; any error between us and Spark becomes a failure of the pipeline."""
    try:
        return jobs.run()
    except Exception as fault:
        LOG.exception("the run broke off")
        is_gone = isinstance(fault, ConnectionError) or type(fault).__module__.startswith("py4j")
        reason = "Spark's own process ended" if is_gone else f"the run broke off: {reason_of(fault)}"
        last = replace(publisher.last, state="failed", error=reason)
        publisher.publish(last)
        return last


def _close(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        # The session is already gone, and the reason was reported.
        LOG.exception("Spark did not stop")


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Python's warnings go to Spark's log unless logging is configured: they would break the live table."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = logging.FileHandler(log_file(folder))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


class SnapshotPublisher:
    """Publishes snapshots to status.json, the metrics and the live table."""

    def __init__(self, folder: Path, start: Snapshot, show: Show | None, metrics: Metrics | None) -> None:
        self._folder = folder
        self._show = show
        self._metrics = metrics
        self.last = start

    def publish(self, snapshot: Snapshot) -> None:
        self.last = replace(snapshot, at_ms=_now_ms())
        write_status(self._folder, self.last)
        if self._metrics is not None:
            self._metrics.snapshot = self.last
        if self._show is not None:
            self._show(self.last)


@dataclass
class _Running:
    """A job that has been started."""

    job: Job
    context: JobContext
    watch: JobWatch
    query: Query
    figures: JobFigures
    tries: int = 1
    is_stopped: bool = False
    """Stopped by us while it was active."""


class Run:
    """The jobs of one run."""

    def __init__(
        self,
        pipeline: Declaration,
        spark: SparkSession,
        publisher: SnapshotPublisher,
        stopping: StopRequest,
        *,
        is_once: bool,
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._publisher = publisher
        self._stopping = stopping
        self._is_once = is_once
        self._jobs: list[_Running] = []
        source = pipeline.source
        self._letters = dead_letter_topics(pipeline, source.topic) if source is not None else ()
        self._ends = EndsWatch(kafka_options(source) if source is not None else {}, self._letter_topics())

    def run(self) -> Snapshot:
        """Start every job and wait for the end; the last snapshot."""
        with self._ends:
            failed = self._start()
            if failed is None:
                failed = self._watch()
            state: State = "failed" if failed else "stopped" if self._stopping.is_requested else "finished"
            self._stop()
        last = self._look(state, failed)
        self._publisher.publish(last)
        return last

    def _start(self) -> str | None:
        """Plan all jobs, then start them one by one; the reason if one fails."""
        plans: list[tuple[JobContext, Plan]] = []
        for job in self._pipeline.jobs:
            if self._stopping.is_requested:
                return None
            context = JobContext(self._spark, self._pipeline, job, JobWatch(job.name, job.kind), self._is_once)
            try:
                plans.append((context, kind_of(job).plan(context, job)))
            except Exception as fault:
                # Name the job, whatever a kind, a transform or Spark reports.
                return f"{job.name} cannot be planned, and no job was started: {reason_of(fault)}"
        for context, plan in plans:
            if self._stopping.is_requested:
                break
            try:
                query = plan()
            except Exception as fault:
                return f"{context.job.name} did not start: {reason_of(fault)}"
            self._jobs.append(_Running(context.job, context, context.watch, query, first_figures(context.job)))
            self._publisher.publish(self._look("running"))
            self._await_begin(query)
        return None

    def _await_begin(self, query: Query) -> None:
        """Wait until a query's source is open: a busy machine that starts all of them at once would exceed the ten
        seconds that Spark gives a source's process."""
        deadline = time.monotonic() + BEGIN_SECONDS
        while time.monotonic() < deadline and not self._stopping.is_requested and query.isActive:
            status = getattr(query, "status", None) or {}
            if query.lastProgress is not None or not str(status.get("message", "")).startswith(BEGINNING):
                break
            self._stopping.wait(LOOK_SECONDS / 2)

    def _restart(self, failed: _Running) -> bool:
        """Restart a query, if allowed."""
        if not _is_only_late(failed):
            return False
        LOG.warning("%s: its Python process did not come up in time; starting it again", failed.job.name)
        failed.query.stop()
        failed.tries += 1
        failed.query = kind_of(failed.job).plan(failed.context, failed.job)()
        self._await_begin(failed.query)
        return True

    def _watch(self) -> str | None:
        """Watch until all have ended or a stop is requested; the reason if one failed."""
        published_at = 0.0
        while not self._stopping.is_requested:
            # Checked first: a query that fails after this, or after its restart, is seen in the next round.
            is_over = not any(each.query.isActive for each in self._jobs)
            failed = next((each for each in self._jobs if each.query.exception() is not None), None)
            if failed is not None and not self._restart(failed):
                return f"{failed.job.name} failed: {reason_of(failed.query.exception())}"
            if is_over and failed is None:
                return None
            if time.monotonic() - published_at >= PUBLISH_SECONDS:
                published_at = time.monotonic()
                self._publisher.publish(self._look("running"))
            self._stopping.wait(LOOK_SECONDS)
        return None

    def _stop(self) -> None:
        """Give running batches some time to finish, then stop, all jobs in parallel."""
        for each in self._jobs:
            each.is_stopped = each.query.isActive
        threads = [
            threading.Thread(target=_stop_after_batch, args=(each.query,), daemon=True)
            for each in self._jobs
            if each.is_stopped
        ]
        for thread in threads:
            thread.start()
        if threads:
            self._publisher.publish(self._look("stopping"))
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(LOOK_SECONDS)

    def _look(self, state: State, error: str | None = None) -> Snapshot:
        letters = self._ends.dead_letters()
        for each in self._jobs:
            figures = each.watch.look(each.query, self._ends.ends)
            if figures.bad is None:
                figures = replace(figures, bad=self._bad_of(each.job, letters))
            if figures.state == "failed" and _is_only_late(each):
                figures = replace(figures, state="starting")
            elif figures.state == "failed":
                figures = replace(figures, error=reason_of(each.query.exception()))
            elif each.is_stopped:
                figures = replace(figures, state="stopping" if each.query.isActive else "stopped")
            each.figures = replace(figures, writes=writes_of(each.job))
        started = {each.job.name: each.figures for each in self._jobs}
        self._ends.topics = frozenset(self._topics())
        return replace(
            self._publisher.last,
            state=state,
            jobs=tuple(started.get(job.name) or first_figures(job) for job in self._pipeline.jobs),
            dead_letters=letters,
            error=error,
        )

    def _topics(self) -> set[str]:
        """The topics being read, with patterns resolved."""
        topics: set[str] = set()
        for each in self._jobs:
            for source in (as_dict(each.query.lastProgress) or {}).get("sources") or ():
                topics |= read_offsets(source.get("endOffset")).keys()
        return topics

    def _letter_topics(self) -> set[str]:
        return {*self._letters, *(topic for job in self._pipeline.jobs for topic in self._own_letters(job))}

    def _own_letters(self, job: Job) -> tuple[str, ...]:
        outputs, source = kind_of(job).dead_letters, self._pipeline.source
        return letters_of(outputs(job), source.topic if source is not None else ()) if outputs is not None else ()

    def _bad_of(self, job: Job, letters: Mapping[str, int]) -> int | None:
        """Bad records of a job that does not count them: new records in its dead letters."""
        topics = set(self._letters) if is_first(self._pipeline, job) else set()
        topics |= set(self._own_letters(job))
        counts = [letters[topic] for topic in topics if topic in letters]
        return sum(counts) if counts else 0 if topics else None


def _is_only_late(failed: _Running) -> bool:
    """Whether its Python process did not start in time, as on a busy machine, and no batch has run."""
    has_begun = failed.figures.batch is not None
    return not has_begun and failed.tries < TRIES_MAX and LATE_PROCESS in str(failed.query.exception())


def first_figures(job: Job) -> JobFigures:
    """The figures of a job that has not started."""
    return JobFigures(job.name, job.kind, writes=writes_of(job))


def writes_of(job: Job) -> Mapping[str, str]:
    outputs = kind_of(job).outputs
    return dict(outputs(job)) if outputs is not None else {}


def _stop_after_batch(query: Query) -> None:
    """Stop between two batches if possible."""
    before = as_dict(query.lastProgress)
    deadline = time.monotonic() + GRACE_SECONDS
    while query.isActive and time.monotonic() < deadline:
        status = getattr(query, "status", None) or {}
        if not status.get("isTriggerActive", False) or as_dict(query.lastProgress) != before:
            break
        time.sleep(0.05)
    query.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
