"""Runs a replay: fixes its input, cuts it into slices, and sends them one by one.

A file beside the checkpoint stores the input and the number of slices sent. Every slice has a number, and with
exactly_once the sink skips numbers that it has already: a crash between sending a slice and updating the file
duplicates nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from millpond.spark.pipelines.background import Background
from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kind import ColumnUse, Kind
from millpond.spark.pipelines.kinds.columns import OFFSET, PARTITION, RAW_VALUE, RECORD, TOPIC, moment
from millpond.spark.pipelines.kinds.flows import TABLES, TOPICS
from millpond.spark.pipelines.kinds.ranges import range_options, read_batch
from millpond.spark.pipelines.kinds.replay import Replay, order_columns, restore, select_rows
from millpond.spark.pipelines.plan import Plan
from millpond.spark.pipelines.status import write_whole
from millpond.spark.pipelines.tables import job_folder
from millpond.spark.pipelines.values import DeclarationError
from millpond.spark.sql.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICES_MAX: Final = 10_000
"""The most slices; beyond that they get larger."""

ONE_TASK_ROWS: Final = 20_000
"""Rows per sending task."""

STEPS_PER_SLICE: Final = 8
"""Time steps per slice."""

SLICE: Final = "_slice"
STEP: Final = "_step"


@dataclass(frozen=True)
class Progress:
    """A replay's fixed input and its progress."""

    fixed_settings: Mapping[str, Any]
    """Settings that must not change during a replay."""
    app_id: str = field(default_factory=lambda: str(uuid4()))
    table_version: int | None = None
    offsets: Mapping[str, Mapping[str, tuple[int, int]]] | None = None
    """First and end offset by topic and partition."""
    slice_rows: int = 1
    """Unchanged when the rate changes."""
    slices: int = 0
    sent: int = 0
    """Finished slices."""

    @classmethod
    def load(cls, path: Path) -> Progress | None:
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise DeclarationError(f"{path} cannot be read: delete it to replay from the beginning") from None

    def save(self, path: Path) -> None:
        """Write atomically."""
        write_whole(path, json.dumps(asdict(self)), synced=True)


def fixed_settings(job: Replay) -> dict[str, Any]:
    """The settings that determine the slices."""
    settings = ("topic", "table", "time", "where", "order", "key", "partitions")
    moments = {"from": job.from_, "to": job.to}
    return {name: getattr(job, name) for name in settings} | {
        name: each.isoformat() if each is not None else None for name, each in moments.items()
    }


@dataclass
class Pace:
    """Limits sending to `rate` records a second."""

    rate: float
    begun_at: float
    sent: int = 0

    def wait_seconds(self, now: float) -> float:
        if not self.rate:
            return 0.0
        due = self.begun_at + self.sent / self.rate
        if now > due + 1:
            # Do not make up for a stall with a burst.
            self.begun_at += now - due - 1
        return max(0.0, due - now)


@dataclass(frozen=True)
class ReplayWork:
    """Runs one replay."""

    context: JobContext
    job: Replay
    cluster: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic

    @property
    def file(self) -> Path:
        # The file is local even if the checkpoint is remote.
        return job_folder(self.context.checkpoint, self.context.pipeline, self.job) / "replay.json"

    def run(self, report: Background) -> None:
        # A new thread has no active session in the JVM, and without one Spark does not find our sink by name.
        # Creating a frame from Python activates its session.
        self.context.spark.createDataFrame([], "nothing int")
        progress = self.begin()
        if progress.sent and progress.sent == progress.slices:
            self.context.set_figure("slices", f"{progress.sent} of {progress.slices}")
            return
        rows, slices = with_slices(select_rows(self._pinned(progress), self.job), self.job, progress.slice_rows)
        progress = replace(progress, slices=slices)
        progress.save(self.file)
        held = rows.persist()
        try:
            self._send(held, progress, report)
        finally:
            held.unpersist()

    def begin(self) -> Progress:
        """The input fixed by an earlier run, or fixed now."""
        progress = Progress.load(self.file)
        if progress is not None:
            if dict(progress.fixed_settings) != fixed_settings(self.job):
                names = [
                    name
                    for name, each in fixed_settings(self.job).items()
                    if progress.fixed_settings.get(name) != each
                ]
                raise DeclarationError(
                    f"[replay] {', '.join(names)} changed since this replay began: change it back, give the job "
                    f"another name, or delete {self.file} to replay from the beginning"
                )
            return progress
        progress = Progress(fixed_settings(self.job), slice_rows=self.job.slice_rows)
        if self.job.table:
            progress = replace(progress, table_version=table_version(self.job.table))
        else:
            progress = replace(progress, offsets=self._offsets())
        progress.save(self.file)
        return progress

    def _pinned(self, progress: Progress) -> DataFrame:
        reader = self.context.spark.read
        if progress.table_version is not None:
            return reader.format(TABLES).option("versionAsOf", progress.table_version).load(self.job.table)
        pinned = progress.offsets or {}
        assigned = {topic: sorted(map(int, each)) for topic, each in pinned.items()}
        starts, ends = (
            {topic: {at: span[end] for at, span in each.items()} for topic, each in pinned.items()} for end in (0, 1)
        )
        offsets = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
        return read_batch(self.context, {"assign": json.dumps(assigned), **offsets})

    def _offsets(self) -> dict[str, dict[str, tuple[int, int]]]:
        """The time range's current offsets. Records written during the replay, even by it, are excluded."""
        ranges: dict[str, dict[str, tuple[int, int]]] = {}
        whole = read_batch(self.context, range_options(self.context, self.job.from_, self.job.to))
        for row in _spans(whole):
            ranges.setdefault(row[TOPIC], {})[str(row[PARTITION])] = (row["first"], row["last"] + 1)
        return ranges

    def _send(self, sliced: DataFrame, progress: Progress, report: Background) -> None:
        from pyspark.sql import functions as f

        sizes = {row[SLICE]: row["count"] for row in sliced.groupBy(SLICE).count().collect()}
        pace = Pace(self.job.rate, self.clock())
        while progress.sent < progress.slices and not report.is_stopping:
            wait = pace.wait_seconds(self.clock())
            if wait > 0:
                time.sleep(min(wait, 0.1))
                continue
            size = sizes.get(progress.sent, 0)
            if size:
                self._send_slice(sliced.where(f.col(SLICE) == progress.sent), size, progress)
            progress = replace(progress, sent=progress.sent + 1)
            progress.save(self.file)
            pace.sent += size
            report.add_rows(size)
            self.context.set_figure("slices", f"{progress.sent} of {progress.slices}")

    def _send_slice(self, rows: DataFrame, size: int, progress: Progress) -> None:
        options = {**self.cluster, "topic": self.job.topic, "delivery": self.job.delivery, **self.job.options}
        if self.job.timestamps == "kept":
            options["includeTimestamps"] = "true"
        if self.job.delivery == "exactly_once":
            options |= {"txnAppId": progress.app_id, "txnVersion": str(progress.sent)}
        tasks = 1 if size <= ONE_TASK_ROWS else -(-size // ONE_TASK_ROWS)
        ordered = in_order(rows, self.job, tasks)
        ordered.write.format(TOPICS).options(**options).mode("append").save()


def slice_count(rows: int, slice_rows: int) -> int:
    return min(SLICES_MAX, -(-rows // slice_rows))


def with_slices(rows: DataFrame, job: Replay, slice_rows: int) -> tuple[DataFrame, int]:
    """The rows with their slice numbers, and the number of slices. Deterministic: the same rows get the same
    slices."""
    return _by_offset(rows, slice_rows) if job.order == "offset" else _by_time(rows, job, slice_rows)


def _by_offset(rows: DataFrame, slice_rows: int) -> tuple[DataFrame, int]:
    """Every partition is cut into the total number of slices, so that all partitions advance and end together."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    slices = slice_count(rows.count(), slice_rows)
    columns = [name for name in (TOPIC, PARTITION) if name in rows.columns]
    whole = Window.partitionBy(*columns)
    number = f.row_number().over(whole.orderBy(OFFSET)) - 1
    count = f.count(f.lit(1)).over(whole)
    return rows.withColumn(SLICE, f.floor(number * f.lit(slices) / count).cast("int")), slices


def _by_time(rows: DataFrame, job: Replay, slice_rows: int) -> tuple[DataFrame, int]:
    """Cut the time range into short steps, and join consecutive steps into slices."""
    from pyspark.sql import functions as f

    micros = f.unix_micros(moment(job.time))
    span = rows.select(
        f.min(micros).alias("first"), f.max(micros).alias("last"), f.count("*").alias("rows")
    ).collect()[0]
    if span["first"] is None:
        return rows.withColumn(SLICE, f.lit(0)), min(1, span["rows"])
    steps = STEPS_PER_SLICE * slice_count(span["rows"], slice_rows)
    width = -(-(span["last"] - span["first"] + 1) // steps)
    # Rows without a time go first: their place in the order is unknown.
    stepped = rows.withColumn(
        STEP, f.expr(f"coalesce(unix_micros(cast({job.time} as timestamp)) - {span['first']}, 0) div {width}")
    )
    counts = {row[STEP]: row["count"] for row in stepped.groupBy(STEP).count().collect()}
    slice_of = join_steps(counts, max(slice_rows, -(-span["rows"] // SLICES_MAX)))
    slices = rows.sparkSession.createDataFrame(list(slice_of.items()), f"{STEP} long, {SLICE} int")
    return stepped.join(f.broadcast(slices), STEP).drop(STEP), max(slice_of.values()) + 1


def join_steps(counts: Mapping[int, int], slice_rows: int) -> dict[int, int]:
    """The slice of every step: consecutive steps are joined up to `slice_rows`. A larger step stays whole, because
    the order within it is unknown."""
    slices: dict[int, int] = {}
    number, rows = 0, 0
    for step in sorted(counts):
        if rows and rows + counts[step] > slice_rows:
            number, rows = number + 1, 0
        slices[step] = number
        rows += counts[step]
    return slices


def in_order(rows: DataFrame, job: Replay, tasks: int) -> DataFrame:
    """The records; those of one key (or partition) are in one task, in order."""
    order = {f"_order_{number}": each for number, each in enumerate(order_columns(rows, job))}
    records = restore(rows, job, [each.alias(name) for name, each in order.items()])
    together = "partition" if job.partitions == "same" else "key"
    spread = records.coalesce(1) if tasks == 1 else records.repartition(tasks, together)
    return spread.sortWithinPartitions(*order).drop(*order)


def table_version(path: str) -> int:
    from millpond.spark.lake.location import Location

    table = Location.of(path).table()
    if table is None:
        raise DeclarationError(f"[replay] table = {path!r}: there is no table")
    return int(table.version())


def _spans(frame: DataFrame) -> list[Any]:
    from pyspark.sql import functions as f

    spans = frame.groupBy(TOPIC, PARTITION).agg(f.min(OFFSET).alias("first"), f.max(OFFSET).alias("last"))
    return spans.collect()


def plan(context: JobContext, job: Replay) -> Plan:
    if not job.table and context.pipeline.source is None:
        raise DeclarationError("[replay] table is missing: name the table, or topics in [source]")
    work = ReplayWork(context, job, job.cluster(context))
    return context.in_background(work.run)


def column_uses(job: Replay, columns: Columns) -> Iterator[ColumnUse]:
    """A table's contents are not checked here."""
    available = None if job.table else (RAW_VALUE, *RECORD)
    for key, sql in (("time", job.time), ("where", job.where), ("key", job.key)):
        if sql:
            yield ColumnUse(key, sql, available)


KIND = Kind(
    name="replay",
    doc="A table or a time range of a topic, sent to a topic again at a given rate.",
    job=Replay,
    plan=plan,
    column_uses=column_uses,
    outputs=lambda job: {"topic": job.topic},
    example="""\
[replay]
table = "lake/orders"
topic = "orders.again"
from = 2026-01-31T08:00:00Z
to = 2026-01-31T09:00:00Z
rate = 1000
""",
)
