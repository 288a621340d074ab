"""Frames as the kinds of jobs get them, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from millpond.client.message import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

RECORD = (
    "_key binary, _value binary, _topic string, _partition int, _offset long, _timestamp timestamp, "
    "_headers array<struct<key:string,value:binary>>"
)


def at(seconds: float) -> datetime:
    """This many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def seconds_of(moment: datetime) -> float:
    """The inverse; Spark returns timestamps without a zone, and the session's is UTC."""
    return (moment.replace(tzinfo=UTC) - NOON).total_seconds()


def parsed_frame(spark: SparkSession, schema: str, rows: list[dict[str, Any]]) -> DataFrame:
    """Parsed columns and those of the record, numbered from 0 in one partition unless a row says otherwise."""
    plain = {"_key": None, "_value": b"{}", "_topic": "orders", "_partition": 0, "_headers": None}
    whole = f"{schema}, {RECORD}"
    names = [part.strip().split(" ")[0] for part in schema.split(",")]
    filled = [
        dict.fromkeys(names) | plain | {"_offset": number, "_timestamp": at(number)} | row
        for number, row in enumerate(rows)
    ]
    order = [*names, "_key", "_value", "_topic", "_partition", "_offset", "_timestamp", "_headers"]
    return spark.createDataFrame([tuple(row[name] for name in order) for row in filled], whole)


def records_of(bootstrap: str, topic: str, seconds_max: float = 20.0) -> list[Message]:
    """Everything committed in a topic, partition by partition, read by a client that is not ours."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, seconds_max).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        left, found = set(partitions), []
        while left:
            record = consumer.poll(seconds_max)
            assert record is not None, f"{topic} did not answer"
            if record.error() is not None:
                left.discard(record.partition())
                continue
            where = (topic, record.partition(), record.offset(), record.timestamp()[1])
            found.append(Message(*where, record.key(), record.value(), tuple(record.headers() or ())))
        return sorted(found, key=lambda each: (each.partition, each.offset))
    finally:
        consumer.close()
