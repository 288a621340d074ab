"""The context in which a job is planned: its input stream, and how to start its query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millpond.spark.options import BAD_ENDING
from millpond.spark.pipelines.background import Background
from millpond.spark.pipelines.plan import Plan, Query
from millpond.spark.pipelines.progress import JobWatch
from millpond.spark.pipelines.reasons import reason_of
from millpond.spark.pipelines.tables import Declaration, Job, Source, Transform
from millpond.spark.pipelines.values import AVAILABLE_NOW, CONTINUOUS, DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT: Final = "millpond"
_ORIGIN: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")


@dataclass(frozen=True)
class JobContext:
    """The context of one job of a run."""

    spark: SparkSession
    pipeline: Declaration
    job: Job
    watch: JobWatch
    is_once: bool = False
    """The run processes what is available now and ends."""

    @property
    def checkpoint(self) -> str:
        """The path of this job's checkpoint. Other state of the job belongs beside it."""
        return f"{self.pipeline.checkpoint}/jobs/{self.job.name}"

    def cluster(self) -> dict[str, str]:
        """The `kafka.*` options of the source's cluster, for a sink or another source on the same cluster."""
        return kafka_options(self.pipeline.source) if self.pipeline.source else {}

    def raw(self, **options: str) -> DataFrame:
        """The stream as the source returns it, unparsed, with these options in addition to the declared ones."""
        assert self.pipeline.source is not None, f"{self.job.name} was declared to need no source"
        options = source_options(self.pipeline, self.job) | options
        return self.spark.readStream.format(FORMAT).options(**options).load()

    def parsed(self) -> DataFrame:
        """The stream before any transform: the parsed columns and _value (of raw records only `value`), then _key,
        _topic, _partition, _offset, _timestamp and _headers; and _fault with bad_records = "null"."""
        options = parse_options(self.pipeline, self.job)
        frame = self.raw(**options)
        if drops_faults(self.pipeline, self.job):
            frame = frame.where("fault IS NULL")
        return frame.selectExpr(*columns(self.pipeline, self.job, "headers" in frame.columns))

    def frame(self) -> DataFrame:
        """The stream of the job's input: parsed, transformed."""
        frame = self.parsed()
        if self.job.input == "input":
            return frame
        steps: dict[str, DataFrame] = {}
        for number, step in enumerate(self.pipeline.transforms):
            frame = self._step(step, number, steps | {"input": frame})
            if step.name:
                steps[step.name] = frame
            if step.name and step.name == self.job.input:
                break
        return frame

    def _step(self, step: Transform, number: int, frames: Mapping[str, DataFrame]) -> DataFrame:
        from pyspark.errors import PySparkException

        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        view = f"millpond_{sql_word(self.job.name)}_{number}"
        try:
            self.spark.sql(step.sql).createOrReplaceTempView(view)
        except PySparkException as fault:
            name = step.name or f"number {number + 1}"
            raise DeclarationError(f"[[transform]] {name}: {reason_of(fault)}") from fault
        # The view keeps its name, because Connect resolves names only when the stream starts.
        return self.spark.table(view)

    def plan(self, writer: DataStreamWriter) -> Plan:
        """Plan a streaming query with the job's name, checkpoint and trigger."""
        writer = writer.queryName(f"{self.pipeline.name}.{self.job.name}")
        writer = writer.option("checkpointLocation", self.checkpoint).trigger(**trigger_arguments(self.trigger))

        def start() -> Query:
            return writer.start()

        return start

    @property
    def trigger(self) -> str:
        return AVAILABLE_NOW if self.is_once else self.job.trigger or self.pipeline.trigger

    def in_background(self, work: Callable[[Background], None]) -> Plan:
        """Run work other than a streaming query on a thread; the runner watches it like a query."""
        return lambda: Background(self.job.name, work)

    def set_figure(self, name: str, figure: int | float | str) -> None:
        """Set a figure of this job for the live table, the status and the metrics (numbers only). Thread-safe."""
        self.watch.figures[name] = figure


def trigger_arguments(trigger: str) -> dict[str, Any]:
    """The arguments of Spark's `trigger`."""
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    return {"processingTime": "0 seconds" if trigger == CONTINUOUS else trigger}


def kafka_options(source: Source) -> dict[str, str]:
    """The options for the cluster and its login."""
    login = {key: each for key, each in source.options.items() if key.lower().startswith("kafka.")}
    return {"kafka.bootstrap.servers": source.brokers} | login


def source_options(pipeline: Declaration, job: Job) -> dict[str, str]:
    """The source's options, without parsing."""
    source = pipeline.source
    assert source is not None
    options = {"kafka.bootstrap.servers": source.brokers}
    if source.topic:
        options["subscribe"] = ",".join(source.topic)
    else:
        options["subscribePattern"] = source.pattern
    if isinstance(source.start, str):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = str(round(source.start.timestamp() * 1000))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if source.group:
        options["commitGroup"] = source.group if is_first(pipeline, job) else f"{source.group}.{job.name}"
    return options | source.options


def parse_options(pipeline: Declaration, job: Job) -> dict[str, str]:
    """A job's parsing options. Every job reads and parses on its own, but only the first one sends dead letters, so
    that there is one per bad record."""
    parse = pipeline.parse
    declared = pipeline.source.options if pipeline.source else {}
    options = {} if "includeheaders" in map(str.lower, declared) else {"includeHeaders": "true"}
    if parse.format == "raw":
        return options
    options |= {"valueFormat": parse.format, "valueSchema": parse.schema_text()}
    if drops_faults(pipeline, job):
        return options | {"badRecords": "null"}
    options["badRecords"] = parse.bad_records
    if parse.dead_letters:
        options["deadLetterTopic"] = parse.dead_letters
    return options


def drops_faults(pipeline: Declaration, job: Job) -> bool:
    parse = pipeline.parse
    return parse.format != "raw" and parse.bad_records == "dead_letters" and not is_first(pipeline, job)


def columns(pipeline: Declaration, job: Job, has_headers: bool) -> list[str]:
    """The columns of the stream before any transform, as Spark SQL."""
    parse = pipeline.parse
    selected = ["value"] if parse.format == "raw" else ["parsed.*", "value AS _value"]
    selected += [f"`{name}` AS _{name}" for name in _ORIGIN if name != "headers" or has_headers]
    if parse.format != "raw" and parse.bad_records == "null":
        selected.append("fault AS _fault")
    return selected


def is_first(pipeline: Declaration, job: Job) -> bool:
    """Whether this is the first job that reads the source, for actions only one job may take."""
    return job.name == next((each.name for each in pipeline.jobs if each.reads_source), None)


def dead_letter_topics(pipeline: Declaration, topics: Iterable[str]) -> tuple[str, ...]:
    """The parser's dead-letter topics."""
    parse = pipeline.parse
    if parse.format == "raw" or parse.bad_records != "dead_letters":
        return ()
    return letters_of(parse.dead_letters, topics)


def letters_of(letters: str, topics: Iterable[str]) -> tuple[str, ...]:
    """The dead-letter topics of these topics: the declared one, or one for each."""
    return (letters,) if letters else tuple(topic + BAD_ENDING for topic in topics)


def sql_word(name: str) -> str:
    """A quoted SQL identifier."""
    return "".join(sign if sign.isalnum() else "_" for sign in name)
