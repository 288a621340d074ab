"""Declared sinks, and batches that are written separately."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millpond.spark.pipelines.kinds.flows import TABLES, TOPICS, Sink, To, write_batch
from millpond.spark.pipelines.values import DeclarationError


def test_a_target_is_a_table_or_a_topic() -> None:
    table = To(table="lake/t", partition_by=["a", "b"], vacuum="0 s")
    assert table.outputs() == {"table": "lake/t"}
    assert table.sink({"kafka.bootstrap.servers": "x"}) == Sink(
        TABLES,
        {
            "path": "lake/t", "targetFileBytes": str(128 << 20), "partitionBy": "a,b",
            "compactEvery": "50", "vacuumHours": "0",
        },
    )  # fmt: skip
    topic = To(topic="out", delivery="at_least_once", options={"kafka.linger.ms": 5})
    assert topic.outputs() == {"topic": "out"}
    assert topic.sink({"kafka.bootstrap.servers": "x"}) == Sink(
        TOPICS,
        {
            "kafka.bootstrap.servers": "x", "delivery": "at_least_once", "topic": "out", "kafka.linger.ms": "5",
        },
    )  # fmt: skip
    with pytest.raises(DeclarationError, match="one of them"):
        To()


class Batch:
    """A frame that records how it is written."""

    def __init__(self, session: Any) -> None:
        self.sparkSession = session
        self.written: dict[str, Any] = {}

    @property
    def write(self) -> Batch:
        return self

    def format(self, name: str) -> Batch:
        self.written["format"] = name
        return self

    def options(self, **given: str) -> Batch:
        self.written |= given
        return self

    def mode(self, name: str) -> Batch:
        self.written["save"] = name
        return self

    def save(self) -> None:
        self.written["saved"] = True


CLASSIC = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "q"}.get))
CONNECT = SimpleNamespace()
ONCE = {"delivery": "exactly_once"}


@pytest.mark.parametrize(
    ("session", "sink", "message"),
    [
        (CLASSIC, Sink(TABLES, {"path": "t"}), {"path": "t", "txnAppId": "q", "txnVersion": "7"}),
        (CLASSIC, Sink(TOPICS, ONCE), {**ONCE, "txnAppId": "q", "txnVersion": "7"}),
        (CLASSIC, Sink(TOPICS, {"delivery": "at_least_once"}), {"delivery": "at_least_once"}),
        (CONNECT, Sink(TABLES, {"path": "t"}), {"path": "t", "ofStream": "true"}),
    ],
)  # fmt: skip
def test_a_batch_is_written_under_its_number(session: Any, sink: Sink, message: dict[str, str]) -> None:
    batch: Any = Batch(session)
    write_batch(batch, 7, sink)
    assert batch.written == {"format": sink.format, "save": "append", "saved": True, **message}


def test_over_connect_a_topic_is_refused_before_anything_is_written() -> None:
    batch: Any = Batch(CONNECT)
    with pytest.raises(DeclarationError, match="to a table only"):
        write_batch(batch, 0, Sink(TOPICS, ONCE))
    assert "saved" not in batch.written
