"""skew: records and bytes by partition, the hottest keys, and the predicted load with other keys and partition
counts.

Reads a range of the topics as a batch, and reports the result as figures of the job and in `skew.json` beside its
checkpoint. With a trigger other than "available_now" it repeats this periodically.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from millpond.remote.skew import AS_IT_IS, HotKey, PartitionLoad, Prediction, Report, judged
from millpond.spark.pipelines.background import Background
from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kind import Kind
from millpond.spark.pipelines.kinds.columns import KEY, PARTITION, RAW_VALUE, RECORD, TOPIC
from millpond.spark.pipelines.kinds.flows import expression_uses
from millpond.spark.pipelines.kinds.ranges import range_options, read_batch
from millpond.spark.pipelines.plan import Plan
from millpond.spark.pipelines.status import write_whole
from millpond.spark.pipelines.tables import Declaration, Job, job_folder
from millpond.spark.pipelines.values import (
    AVAILABLE_NOW,
    DURATION,
    MOMENT,
    TEXTS,
    DeclarationError,
    Duration,
    Reader,
    number,
    value,
    whole,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NO_KEY: Final = -1
"""The predicted partition of a record without a key."""

FILE: Final = "skew.json"
COUNTS_MAX: Final = 32
PARTITIONS_MAX: Final = 10_000


def _counts(value: Any) -> tuple[int, ...]:
    counts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in counts):
        raise ValueError("write whole numbers, as [6, 12]")
    if len(counts) > COUNTS_MAX or any(not 1 <= each <= PARTITIONS_MAX for each in counts):
        raise ValueError(f"at most {COUNTS_MAX} counts, each from 1 to {PARTITIONS_MAX:,}")
    return tuple(sorted(set(counts)))


@dataclass(frozen=True, kw_only=True)
class Skew(Job):
    """Reports how evenly the partitions of the source's topics are loaded, and the causes of skew."""

    kind = "skew"

    from_: datetime | None = value("Records from this moment on.", MOMENT, None)
    to: datetime | None = value("Records until before this moment.", MOMENT, None)
    last: Duration | None = value("How far back it looks, instead of `from`.", DURATION, None)
    partitions: tuple[int, ...] = value(
        "Partition counts to try; up to four times the present one if not given.",
        Reader("whole numbers", _counts),
        (),
    )
    keys: dict[str, str] = value(
        "Other keys to try, in SQL by name, made of _key, value, _offset and so on.", TEXTS, {}
    )
    top: int = value("How many of the hottest keys are reported.", whole(1, 1000), 10)
    balance: float = value(
        "Up to this ratio of the busiest partition to the average, the topic counts as balanced.",
        number(1, 100),
        1.25,
    )
    every: Duration = value("How often it measures, if the trigger repeats it.", DURATION, Duration(60_000))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last is not None and self.from_ is not None:
            raise DeclarationError("give from or last, not both")
        if AS_IT_IS in self.keys:
            raise DeclarationError(f"keys: {AS_IT_IS!r} is the name of the present key")


def measure(frame: DataFrame, job: Skew, topic: str, partitions: int = 0) -> Report:
    """Measure the balance of one topic, from a frame with the columns of a raw archive. `partitions` is the topic's
    partition count; by default, the highest partition seen determines it."""
    from pyspark.sql import functions as f

    size = f.coalesce(f.length("value"), f.lit(0)) + f.coalesce(f.length(KEY), f.lit(0))
    rows = frame.withColumn("_bytes", size.cast("long"))
    sums = (f.count(f.lit(1)).alias("records"), f.sum("_bytes").alias("bytes"))
    by_partition = rows.groupBy(PARTITION).agg(*sums, f.count_if(f.col(KEY).isNull()).alias("keyless"))
    seen = {row[PARTITION]: (row["records"], row["bytes"], row["keyless"]) for row in by_partition.collect()}
    count = max(partitions, *[at + 1 for at in seen], 1)
    loads = tuple(PartitionLoad(at, *seen.get(at, (0, 0))[:2]) for at in range(count))
    counts = job.partitions or tuple(count * times for times in (2, 3, 4))
    tried = tuple(dict.fromkeys((count, *counts)))
    keyed_rows = with_partitions(rows.groupBy(KEY, PARTITION).agg(*sums), tried).persist()
    try:
        keys, followed = _followed_partitioners(keyed_rows, count)
        report = Report(
            topic,
            loads,
            keys=keys,
            keyless=sum(each[2] for each in seen.values()),
            hottest=_hottest_keys(keyed_rows, job.top),
            followed=followed,
            predictions=(*_predictions(AS_IT_IS, keyed_rows, tried), *_other_keys(rows, job, tried)),
        )
    finally:
        keyed_rows.unpersist()
    return judged(report, job.balance)


def with_partitions(keyed: DataFrame, counts: Sequence[int]) -> DataFrame:
    """Keys with their predicted partition for each of these counts; -1 for no key."""
    from pyspark.sql.types import ArrayType, IntegerType, StructType

    schema = StructType([*keyed.schema.fields]).add("tried_partitions", ArrayType(IntegerType()))
    tried = tuple(counts)

    def add_partitions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _with_partitions(batch, tried)

    return keyed.mapInArrow(add_partitions, schema)


def _with_partitions(batch: pa.RecordBatch, counts: Sequence[int]) -> pa.RecordBatch:
    import pyarrow as pa

    from millpond.wire.kernel import BinaryColumn, key_partitions

    keys = batch.column(batch.schema.get_field_index(KEY)).cast(pa.binary())
    validity, offsets, data = keys.buffers()
    column = BinaryColumn(keys.offset, offsets, data, validity)
    rows = batch.num_rows
    answers = [pa.py_buffer(key_partitions(column, rows, count)) for count in counts]
    by_count = [pa.Array.from_buffers(pa.int32(), rows, [None, answer]) for answer in answers]
    # One list for each row, with a partition for each count.
    width = len(counts)
    flat = pa.concat_arrays(by_count).take(pa.array([at * rows + row for row in range(rows) for at in range(width)]))
    starts = pa.array(range(0, rows * width + 1, width), pa.int32())
    lists = pa.ListArray.from_arrays(starts, flat)
    return pa.RecordBatch.from_arrays([*batch.columns, lists], names=[*batch.schema.names, "tried_partitions"])


def _hottest_keys(keyed_rows: DataFrame, top: int) -> tuple[HotKey, ...]:
    from pyspark.sql import functions as f

    keys = keyed_rows.where(f.col(KEY).isNotNull()).groupBy(KEY)
    sums = (f.sum("records").alias("records"), f.sum("bytes").alias("bytes"))
    most = keys.agg(*sums, f.max_by(PARTITION, "bytes").alias("at"))
    rows = most.orderBy(f.desc("bytes"), KEY).limit(top).collect()
    return tuple(HotKey(bytes(row[KEY]), row["at"], row["records"], row["bytes"]) for row in rows)


def _followed_partitioners(keyed_rows: DataFrame, count: int) -> tuple[int, dict[str, float]]:
    """The number of keys, and the share of their records in the partition that murmur2 (the default of Java clients
    and ours) or crc32 (that of librdkafka) assigns."""
    from pyspark.sql import functions as f

    here = f.col(PARTITION)
    ways = {"murmur2": f.col("tried_partitions")[0] == here, "crc32": f.pmod(f.crc32(KEY), f.lit(count)) == here}
    sums = [f.sum(f.when(fits, f.col("records")).otherwise(0)).alias(name) for name, fits in ways.items()]
    whole = (f.sum("records").alias("records"), f.count_distinct(KEY).alias("keys"))
    row = keyed_rows.where(f.col(KEY).isNotNull()).select(*whole, *sums).collect()[0]
    return row["keys"], {name: row[name] / row["records"] for name in ways} if row["records"] else {}


def _predictions(name: str, keyed_rows: DataFrame, counts: Sequence[int]) -> Iterator[Prediction]:
    from pyspark.sql import functions as f

    exploded = keyed_rows.select("bytes", f.posexplode("tried_partitions").alias("tried", "index"))
    loads = {
        (row["tried"], row["index"]): row["bytes"]
        for row in exploded.groupBy("tried", "index").agg(f.sum("bytes").alias("bytes")).collect()
    }
    for tried, count in enumerate(counts):
        # Clients spread records without a key evenly.
        keyless = loads.get((tried, NO_KEY), 0) // count
        yield Prediction(name, count, tuple(loads.get((tried, at), 0) + keyless for at in range(count)))


def _other_keys(rows: DataFrame, job: Skew, counts: Sequence[int]) -> Iterator[Prediction]:
    from pyspark.sql import functions as f

    for name, sql in job.keys.items():
        key = f.encode(f.expr(sql).cast("string"), "UTF-8").alias(KEY)
        sums = (f.sum("_bytes").alias("bytes"), f.count("*").alias("records"))
        keyed = rows.select(key, "_bytes").groupBy(KEY).agg(*sums)
        yield from _predictions(name, with_partitions(keyed, counts), counts)


# As a job


def plan(context: JobContext, job: Skew) -> Plan:
    return context.in_background(lambda work: _run(context, job, work))


def _run(context: JobContext, job: Skew, work: Background) -> None:
    trigger = job.trigger or context.pipeline.trigger
    is_once = context.is_once or trigger == AVAILABLE_NOW
    due = 0.0
    while not work.is_stopping:
        if time.monotonic() < due:
            time.sleep(0.1)
            continue
        due = time.monotonic() + job.every.seconds
        reports = list(_reports(context, job))
        for report in reports:
            _set_figures(context, report)
        text = json.dumps([report.as_object() for report in reports], indent=2)
        write_whole(job_folder(context.checkpoint, context.pipeline, job) / FILE, text)
        work.add_rows(sum(report.records for report in reports))
        if is_once:
            return


def _reports(context: JobContext, job: Skew) -> Iterator[Report]:
    from pyspark.sql import functions as f

    begin = datetime.now(UTC) - timedelta(milliseconds=job.last.ms) if job.last is not None else job.from_
    frame = read_batch(context, range_options(context, begin, job.to))
    for topic, count in sorted(_partition_counts(context).items()):
        yield measure(frame.where(f.col(TOPIC) == topic), job, topic, count)


def _partition_counts(context: JobContext) -> dict[str, int]:
    """The partitions of the topics that are read, by topic."""
    from millpond.remote.cluster import Cluster

    source = context.pipeline.source
    assert source is not None
    with Cluster({name.removeprefix("kafka."): each for name, each in context.cluster().items()}) as cluster:
        topics = cluster.topics(source.topic or None)
    names = [name for name in topics if not source.pattern or re.fullmatch(source.pattern, name)]
    return {name: len(topics[name].partitions) for name in names}


def _set_figures(context: JobContext, report: Report) -> None:
    context.set_figure("imbalance", round(report.imbalance, 3))
    context.set_figure("cause", report.cause)
    if report.hottest:
        context.set_figure("hottest", f"{report.hottest[0].text} {report.share(report.hottest[0]):.1%}")


def last_reports(pipeline: Declaration, job: Skew) -> list[Report]:
    """The reports of a job's last measurement, one for each topic; empty if there is none yet."""
    path = job_folder(f"{pipeline.checkpoint}/jobs/{job.name}", pipeline, job) / FILE
    return [Report.from_object(each) for each in json.loads(path.read_text())] if path.exists() else []


KIND = Kind(
    name="skew",
    doc="Hot keys and the balance of partitions, with a better key or partition count.",
    job=Skew,
    plan=plan,
    column_uses=lambda job, _: expression_uses("keys", job.keys, (RAW_VALUE, *RECORD)),
    findings=last_reports,
    example="""\
[skew]
last = "1 hour"
partitions = [12, 24]
keys = { by_customer = "get_json_object(cast(value as string), '$.customer')" }
""",
)
