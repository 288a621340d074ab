"""Dead letters from Spark equal those of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.client import dead_letters
from millpond.client.message import Message
from millpond.spark.pipelines.kinds.letters import letter_headers
from support.spark_kinds import parsed_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_headers_are_the_same_as_the_clients(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    own = [
        ("trace", b"\x00\xff"),
        ("dlq.topic", b"old"),
        ("retry.due", b"1"),
        ("dlq.redriven", b"x"),
        ("trace", None),
    ]
    counted = [("dlq.redriven", b"1"), ("dlq.redriven", b"2")]
    frame = parsed_frame(spark, "a int", [{"_headers": own}, {"_headers": counted}, {}])
    long = f.lit("ä" * 3000)
    rows = frame.select("_offset", letter_headers(frame, "odd", long, "group").alias("headers")).orderBy("_offset")
    spoken = [
        [(each.key, None if each.value is None else bytes(each.value)) for each in row.headers]
        for row in rows.collect()
    ]
    ours = Message("orders", 0, 0, 1_769_860_800_000, headers=tuple(own))
    theirs = dead_letters.dead_letter(
        ours, ValueError("x"), to="d", origin=dead_letters.origin_of(ours), attempts=1, group="group", now_ms=0
    )
    assert [name for name, _ in spoken[0]] == [name for name, _ in theirs.headers]
    same = {dead_letters.TOPIC, dead_letters.PARTITION, dead_letters.OFFSET, dead_letters.TIMESTAMP, "trace"}
    same |= {dead_letters.ATTEMPTS, dead_letters.GROUP, dead_letters.REDRIVEN}
    assert [each for each in spoken[0] if each[0] in same] == [each for each in theirs.headers if each[0] in same]
    letters = [dead_letters.read_dead_letter(Message("d", 0, 0, headers=tuple(each))) for each in spoken]
    assert [letter.redriven for letter in letters] == [0, 2, 0]
    assert letters[0].error_message == "ä" * dead_letters.ERROR_MESSAGE_CHARACTERS_MAX
