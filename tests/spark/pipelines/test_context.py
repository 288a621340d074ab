"""The options and columns of a job's input, and SQL steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from millpond.spark.pipelines import context as c
from millpond.spark.pipelines.declaration import DeclarationError, Parse, Pipeline, Source, Transform
from millpond.spark.pipelines.kinds.archive import Archive
from millpond.spark.pipelines.progress import JobWatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST, SECOND = Archive(table="a"), Archive(table="b", name="second", trigger="1 minute")
PIPELINE = Pipeline(
    name="orders",
    checkpoint="/state",
    source=Source(topic="orders", bootstrap="pond:9092", group="g", options={"kafka.sasl.username": "u", "x": "1"}),
    parse=Parse(format="json", schema="id long", bad_records="dead_letters"),
    jobs=(FIRST, SECOND),
)


def test_source_options_follow_the_declaration() -> None:
    assert c.source_options(PIPELINE, FIRST) == {
        "kafka.bootstrap.servers": "pond:9092",
        "kafka.sasl.username": "u",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "commitGroup": "g",
        "x": "1",
    }
    assert c.source_options(PIPELINE, SECOND)["commitGroup"] == "g.second", "two queries cannot be one group"
    moment = Source(pattern="o.*", start=datetime(2026, 1, 31, tzinfo=UTC))
    result = c.source_options(replace(PIPELINE, source=moment), FIRST)
    assert (result["subscribePattern"], result["startingTimestamp"]) == ("o.*", "1769817600000")
    assert not {"subscribe", "startingOffsets", "commitGroup"} & result.keys()


def test_a_sink_gets_only_the_settings_of_the_cluster() -> None:
    assert PIPELINE.source is not None
    assert c.kafka_options(PIPELINE.source) == {"kafka.bootstrap.servers": "pond:9092", "kafka.sasl.username": "u"}


def test_only_the_first_job_sends_dead_letters() -> None:
    assert c.parse_options(PIPELINE, FIRST)["badRecords"] == "dead_letters"
    assert c.parse_options(PIPELINE, SECOND)["badRecords"] == "null"
    assert (c.drops_faults(PIPELINE, FIRST), c.drops_faults(PIPELINE, SECOND)) == (False, True)
    named = replace(PIPELINE, parse=replace(PIPELINE.parse, dead_letters="bad"))
    assert c.parse_options(named, FIRST)["deadLetterTopic"] == "bad"
    assert c.dead_letter_topics(named, ("orders",)) == ("bad",)
    assert c.dead_letter_topics(PIPELINE, ("orders", "more")) == ("orders.bad.dlq", "more.bad.dlq")
    assert c.dead_letter_topics(replace(PIPELINE, parse=Parse()), ("orders",)) == ()


def test_columns_of_raw_and_parsed_records() -> None:
    origin = ["`key` AS _key", "`topic` AS _topic", "`partition` AS _partition", "`offset` AS _offset"]
    origin.append("`timestamp` AS _timestamp")
    raw = replace(PIPELINE, parse=Parse())
    assert c.columns(raw, FIRST, has_headers=False) == ["value", *origin]
    assert c.parse_options(raw, FIRST) == {"includeHeaders": "true"}
    nulls = replace(PIPELINE, parse=replace(PIPELINE.parse, bad_records="null"))
    assert c.columns(nulls, SECOND, has_headers=True) == [
        "parsed.*",
        "value AS _value",
        *origin,
        "`headers` AS _headers",
        "fault AS _fault",
    ]


def test_a_run_once_overrides_the_trigger() -> None:
    assert c.trigger_arguments("available_now") == {"availableNow": True}
    assert c.trigger_arguments("continuous") == {"processingTime": "0 seconds"}
    assert c.trigger_arguments("10 seconds") == {"processingTime": "10 seconds"}
    watch = JobWatch("a", "b")
    assert c.JobContext(None, PIPELINE, FIRST, watch).trigger == "continuous"  # type: ignore[arg-type]
    assert c.JobContext(None, PIPELINE, SECOND, watch).trigger == "1 minute"  # type: ignore[arg-type]
    assert c.JobContext(None, PIPELINE, SECOND, watch, is_once=True).trigger == "available_now"  # type: ignore[arg-type]


def test_a_figure_of_a_job_is_in_its_watch() -> None:
    watch = JobWatch("a", "b")
    c.JobContext(None, PIPELINE, FIRST, watch).set_figure("hot", 5)  # type: ignore[arg-type]
    assert watch.figures == {"hot": 5}


class _Given(c.JobContext):
    """Reads a local stream instead of topics."""

    def parsed(self) -> DataFrame:
        return self.spark.readStream.format("rate").load().selectExpr("value AS id", "timestamp AS _timestamp")


STEPS = (
    Transform(name="doubled", sql="select id * 2 as id, _timestamp from input"),
    Transform(name="later", sql="select id, _timestamp from doubled where id > 5"),
    Transform(sql="select a.id as last_id, b.id from input a join doubled b on a._timestamp = b._timestamp"),
)


def test_steps_read_the_one_before_or_any_by_its_name(spark: SparkSession) -> None:
    def frame(steps: tuple[Transform, ...], job: Archive = FIRST) -> Any:
        return _Given(spark, replace(PIPELINE, transforms=steps, jobs=(job,)), job, JobWatch("a", "b")).frame()

    assert frame(STEPS).columns == ["last_id", "id"]
    assert frame(STEPS, Archive(table="a", input="doubled")).columns == ["id", "_timestamp"]
    assert frame(STEPS, Archive(table="a", input="input")).columns == ["id", "_timestamp"]
    assert frame(STEPS[:2]).isStreaming
    with pytest.raises(DeclarationError, match=r"\[\[transform\]\] broken: Syntax error at or near 'selec'"):
        frame((STEPS[0], Transform(name="broken", sql="selec * from input")))
