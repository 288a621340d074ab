"""Runs a pipeline: starts its jobs, watches them, stops them in peace, and says in words why one failed."""

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
from millpond.spark.pipelines.kind import Plan, Query
from millpond.spark.pipelines.kinds import kind_of
from millpond.spark.pipelines.lock import locked
from millpond.spark.pipelines.metrics import Metrics
from millpond.spark.pipelines.progress import JobFigures, JobWatch, Snapshot, State, as_dict, read_offsets
from millpond.spark.pipelines.reasons import reason_of
from millpond.spark.pipelines.session import LOCAL, log_file, make_session
from millpond.spark.pipelines.status import write_status
from millpond.spark.pipelines.stop_request import StopRequest
from millpond.spark.pipelines.tables import Declaration, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS: Final = 0.25
"""How often the jobs are looked at."""

TELL_SECONDS: Final = 1.0
"""How often the status is written and shown."""

GRACE_SECONDS: Final = 10.0
"""How long a batch may go on after a stop, before it is left for the next run to do again."""

BEGIN_SECONDS: Final = 15.0
BEGINNING: Final = ("Initializing", "Getting offsets")
"""What Spark says of a query whose sources are not open yet."""

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
    """How a run ended: `finished` (it was to end when all was read) or `stopped`, and its last figures."""

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
    """Run until every job has ended, one has failed (PipelineFailed), or somebody wants it to stop.

    `once` takes what is there now and ends. With `spark` it runs in that session, and leaves it open.
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
        stack.enter_context(locked(folder, pipeline.name))
        served = stack.enter_context(Metrics(metrics)) if metrics else None
        start = replace(start, metrics=served.address if served is not None else "")
        teller = Teller(folder, start, show, served)
        stack.enter_context(stopping.listening(lambda: teller.tell(replace(teller.last, state="stopped"))))
        teller.tell(start)
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
                # Spark sets a handler of its own for Ctrl-C.
                stopping.listen()
            last = _through(Run(pipeline, spark, teller, stopping, is_once=once), teller)
        except BaseException as fault:
            teller.tell(replace(teller.last, state="failed", error=str(fault) or type(fault).__name__))
            raise
    if last.state == "failed":
        raise PipelineFailed(last)
    return Outcome(last)


def _through(jobs: Run, teller: Teller) -> Snapshot:
    """Through the run. Whatever goes wrong between us and Spark is told as a failure of the pipeline."""
    try:
        return jobs.through()
    except Exception as fault:
        LOG.exception("the run broke off")
        is_gone = isinstance(fault, ConnectionError) or type(fault).__module__.startswith("py4j")
        reason = "Spark's own process ended" if is_gone else f"the run broke off: {reason_of(fault)}"
        last = replace(teller.last, state="failed", error=reason)
        teller.tell(last)
        return last


def _close(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        # It is gone already, and why has been told.
        LOG.exception("Spark did not stop")


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Warnings in Python go where Spark's are, unless somebody wants them elsewhere: on the terminal they would tear
    the table."""
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


class Teller:
    """Tells how it goes, to all who listen: status.json, the metrics, and whoever watches."""

    def __init__(self, folder: Path, start: Snapshot, show: Show | None, metrics: Metrics | None) -> None:
        self._folder = folder
        self._show = show
        self._metrics = metrics
        self.last = start

    def tell(self, snapshot: Snapshot) -> None:
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
    """It would have gone on by itself."""


class Run:
    """The jobs of one run."""

    def __init__(
        self, pipeline: Declaration, spark: SparkSession, teller: Teller, stopping: StopRequest, *, is_once: bool
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._teller = teller
        self._stopping = stopping
        self._is_once = is_once
        self._jobs: list[_Running] = []
        source = pipeline.source
        self._letters = dead_letter_topics(pipeline, source.topic) if source is not None else ()
        self._ends = EndsWatch(kafka_options(source) if source is not None else {}, self._letter_topics())

    def through(self) -> Snapshot:
        """Start every job and stay until the end; what it was at the end."""
        with self._ends:
            failed = self._start()
            if failed is None:
                failed = self._watch()
            state: State = "failed" if failed else "stopped" if self._stopping.is_asked else "finished"
            self._stop()
        last = self._look(state, failed)
        self._teller.tell(last)
        return last

    def _start(self) -> str | None:
        """Plan all jobs, then start them one after another; the reason if one does not."""
        plans: list[tuple[JobContext, Plan]] = []
        for job in self._pipeline.jobs:
            if self._stopping.is_asked:
                return None
            context = JobContext(self._spark, self._pipeline, job, JobWatch(job.name, job.kind), self._is_once)
            try:
                plans.append((context, kind_of(job).plan(context, job)))
            except Exception as fault:
                # Whatever a kind, a transform or Spark says of it, the user is told which job it was.
                return f"{job.name} cannot be planned, and no job was started: {reason_of(fault)}"
        for context, plan in plans:
            if self._stopping.is_asked:
                break
            try:
                query = plan()
            except Exception as fault:
                return f"{context.job.name} did not start: {reason_of(fault)}"
            self._jobs.append(_Running(context.job, context, context.watch, query, first_figures(context.job)))
            self._teller.tell(self._look("running"))
            self._let_begin(query)
        return None

    def _let_begin(self, query: Query) -> None:
        """Wait until a query has its source open, so that a busy machine does not have to start all of them at once:
        Spark gives a source's process ten seconds to come up."""
        deadline = time.monotonic() + BEGIN_SECONDS
        while time.monotonic() < deadline and not self._stopping.is_asked and query.isActive:
            status = getattr(query, "status", None) or {}
            if query.lastProgress is not None or not str(status.get("message", "")).startswith(BEGINNING):
                break
            self._stopping.wait(LOOK_SECONDS / 2)

    def _again(self, failed: _Running) -> bool:
        """Start a query again that may be; False if it may not."""
        if not _is_only_late(failed):
            return False
        LOG.warning("%s: its Python process did not come up in time; starting it again", failed.job.name)
        failed.query.stop()
        failed.tries += 1
        failed.query = kind_of(failed.job).plan(failed.context, failed.job)()
        self._let_begin(failed.query)
        return True

    def _watch(self) -> str | None:
        """Until all have ended or a stop is asked for; the reason if one failed."""
        told_at = 0.0
        while not self._stopping.is_asked:
            # Asked first: one that fails after this, or once it was started again, is seen the next time.
            is_over = not any(each.query.isActive for each in self._jobs)
            failed = next((each for each in self._jobs if each.query.exception() is not None), None)
            if failed is not None and not self._again(failed):
                return f"{failed.job.name} failed: {reason_of(failed.query.exception())}"
            if is_over and failed is None:
                return None
            if time.monotonic() - told_at >= TELL_SECONDS:
                told_at = time.monotonic()
                self._teller.tell(self._look("running"))
            self._stopping.wait(LOOK_SECONDS)
        return None

    def _stop(self) -> None:
        """Let each batch that is under way come to its end for a while, then stop. Together they are no slower."""
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
            self._teller.tell(self._look("stopping"))
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
            self._teller.last,
            state=state,
            jobs=tuple(started.get(job.name) or first_figures(job) for job in self._pipeline.jobs),
            dead_letters=letters,
            error=error,
        )

    def _topics(self) -> set[str]:
        """What is really read, patterns resolved."""
        topics: set[str] = set()
        for each in self._jobs:
            for source in (as_dict(each.query.lastProgress) or {}).get("sources") or ():
                topics |= read_offsets(source.get("endOffset")).keys()
        return topics

    def _letter_topics(self) -> set[str]:
        return {*self._letters, *(topic for job in self._pipeline.jobs for topic in self._own_letters(job))}

    def _own_letters(self, job: Job) -> tuple[str, ...]:
        ask, source = kind_of(job).dead_letters, self._pipeline.source
        return letters_of(ask(job), source.topic if source is not None else ()) if ask is not None else ()

    def _bad_of(self, job: Job, letters: Mapping[str, int]) -> int | None:
        """Bad records of a job that does not count them: what came to its dead letters."""
        topics = set(self._letters) if is_first(self._pipeline, job) else set()
        topics |= set(self._own_letters(job))
        known = [letters[topic] for topic in topics if topic in letters]
        return sum(known) if known else 0 if topics else None


def _is_only_late(failed: _Running) -> bool:
    """Its Python process did not come up in time, as on a busy machine, and nothing has been done yet."""
    has_begun = failed.figures.batch is not None
    return not has_begun and failed.tries < TRIES_MAX and LATE_PROCESS in str(failed.query.exception())


def first_figures(job: Job) -> JobFigures:
    """A job that has not begun."""
    return JobFigures(job.name, job.kind, writes=writes_of(job))


def writes_of(job: Job) -> Mapping[str, str]:
    ask = kind_of(job).outputs
    return dict(ask(job)) if ask is not None else {}


def _stop_after_batch(query: Query) -> None:
    """Stop between two batches if there is such a moment soon."""
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
