"""Every kind end to end: a real node, real records, tables and topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond import Producer
from millpond.client.dead_letters import read_dead_letter
from millpond.spark import Aggregate, Archive, Latest, Parse, Pipeline, Quality, Replay, Sessions, Skew, Source
from millpond.spark.pipelines.kinds.skew import last_reports
from support.node import Node
from support.patience import with_time
from support.spark_kinds import NOON, at, records_of, seconds_of
from support.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from millpond.spark.pipelines.progress import JobFigures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ORDER = "id long, user string, region string, total double, at timestamp"
ORDERS = 120
NOON_MS = round(NOON.timestamp() * 1000)


def order(number: int) -> dict[str, Any]:
    """One per second; each user has one every four seconds for a minute. Every fortieth is bad."""
    return {
        "id": number,
        "user": f"u{number % 4}-{number // 60}",
        "region": "eu" if number % 3 else "us",
        "total": -1.0 if number % 40 == 7 else float(number),
        "at": at(number).isoformat(),
    }


@pytest.fixture(scope="module")
def orders(node: Node) -> str:
    """A topic with orders, two values that are not JSON, and an order from an hour later that moves the watermark."""
    create_topic(node.bootstrap, "orders", 3)
    later = order(ORDERS) | {"at": at(3600).isoformat(), "user": "later"}
    with Producer(node.bootstrap) as producer:
        for number in range(ORDERS):
            value = order(number)
            producer.send("orders", value, value["user"], headers={"n": str(number)}, timestamp_ms=NOON_MS + number)
        for poison in (b"{", b"\xff"):
            producer.send("orders", poison, "poison", timestamp_ms=NOON_MS + 5000)
        producer.flush()
        producer.send("orders", later, "later", timestamp_ms=NOON_MS + 6000)
    return "orders"


def run(spark: SparkSession, folder: Path, name: str, **declared: Any) -> dict[str, JobFigures]:
    """Run a pipeline once; the figures of its jobs."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    pipeline = Pipeline(name=name, checkpoint=str(folder / name), **declared)
    return {job.name: job for job in pipeline.run(spark=spark, once=True).snapshot.jobs}


def rows(spark: SparkSession, table: Path) -> list[Row]:
    return spark.read.format("millpond_delta").load(str(table)).collect()


def declared(node: Node, *jobs: Any) -> dict[str, Any]:
    parse = Parse(format="json", schema=ORDER, bad_records="dead_letters")
    return {"source": Source(bootstrap=node.bootstrap, topic="orders"), "parse": parse, "jobs": jobs}


@pytest.mark.usefixtures("orders")
def test_a_topic_is_archived_and_checked(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    jobs = (
        Archive(table=tmp_path / "archive", partition_by=["region", "date"], time="at"),
        Quality(
            rules={"positive": "total >= 0", "known": "region is not null"},
            to={"table": tmp_path / "good"},
            dead_letters="refused",
        ),
    )
    figures = run(spark, tmp_path, "checked", **declared(node, *jobs))
    archived = rows(spark, tmp_path / "archive")
    assert sorted(row.id for row in archived) == list(range(ORDERS + 1))
    assert {(row._topic, str(row.date)) for row in archived} == {("orders", "2026-01-31")}
    assert (tmp_path / "archive" / "region=eu" / "date=2026-01-31").is_dir()

    good = rows(spark, tmp_path / "good")
    assert sorted(row.id for row in good) == [n for n in range(ORDERS + 1) if n % 40 != 7]
    refused = records_of(node.bootstrap, "refused")
    assert sorted(json.loads(each.value or b"")["id"] for each in refused) == [7, 47, 87]
    letters = [read_dead_letter(each) for each in refused]
    assert {(each.error_message, each.group, each.origin.topic) for each in letters} == {
        ("breaks positive", "quality", "orders")
    }
    assert {each.header("n") for each in refused} == {b"7", b"47", b"87"}
    assert (figures["quality"].bad, figures["quality"].rows_out) == (3, ORDERS - 2)
    assert figures["quality"].figures["breaks_positive"] == 3
    assert figures["quality"].figures["breaks_known"] == 0
    assert len(records_of(node.bootstrap, "orders.bad.dlq")) == 2, "of every poison one, however many jobs read it"


@pytest.mark.usefixtures("orders")
def test_windows_and_sessions_of_a_topic(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    windows: dict[str, Any] = {"time": "at", "window": "1 m", "watermark": "10 s", "measures": {"n": "count(*)"}}
    jobs = (
        Aggregate(name="closed", group_by=["region"], to={"topic": "per-minute"}, **windows),
        Aggregate(name="open", mode="update", to={"table": tmp_path / "windows"}, **windows),
        Sessions(key=["user"], time="at", gap="10 s", watermark="10 s", to={"table": tmp_path / "sessions"}),
    )
    run(spark, tmp_path, "windows", **declared(node, *jobs))
    closed = [json.loads(record.value or b"") for record in records_of(node.bootstrap, "per-minute")]
    counted = {(each["window_start"][11:19], each["region"]): each["n"] for each in closed}
    assert counted == {(f"12:0{m}:00", region): n for m in (0, 1) for region, n in (("eu", 40), ("us", 20))}
    assert len(closed) == 4

    opened = {seconds_of(row.window_start): row.n for row in rows(spark, tmp_path / "windows")}
    assert opened == {0: 60, 60: 60, 3600: 1}, "the last window is still open"

    sessions = rows(spark, tmp_path / "sessions")
    assert {(row.user, row.events) for row in sessions} == {(f"u{u}-{m}", 15) for u in range(4) for m in (0, 1)}


@with_time
def test_the_last_record_of_every_key_is_in_the_table(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    create_topic(node.bootstrap, "customers", 2)
    jobs = [Latest(table=tmp_path / "customers", key={"id": "cast(cast(_key as string) as int)"})]
    declared = {
        "source": Source(bootstrap=node.bootstrap, topic="customers"),
        "parse": Parse(format="json", schema="name string"),
        "jobs": jobs,
    }

    def known() -> dict[int, str]:
        return {row.id: row.name for row in rows(spark, tmp_path / "customers")}

    with Producer(node.bootstrap) as producer:
        for version in range(20):
            for key in range(5):
                producer.send("customers", {"name": f"{key} v{version}"}, str(key))
        producer.send("customers", None, "1")
        producer.send("customers", {"name": "nobody"})
    first = run(spark, tmp_path, "customers", **declared)["latest"]
    assert known() == {key: f"{key} v19" for key in (0, 2, 3, 4)}
    assert (first.figures["without_key"], first.figures["deletes"]) == (1, 1)
    with Producer(node.bootstrap) as producer:
        for key, name in (("0", None), ("1", {"name": "back"}), ("2", None), ("2", {"name": "last"}), ("9", None)):
            producer.send("customers", name, key)
    run(spark, tmp_path, "customers", **declared)
    assert known() == {1: "back", 2: "last", 3: "3 v19", 4: "4 v19"}


@with_time
def test_an_archive_is_replayed_unchanged(spark: SparkSession, node: Node, orders: str, tmp_path: Path) -> None:
    source = Source(bootstrap=node.bootstrap, topic=orders)
    raw = [Archive(table=tmp_path / "raw", raw=True)]
    run(spark, tmp_path, "raw", source=source, jobs=raw, parse=Parse(format="json", schema=ORDER, bad_records="null"))
    create_topic(node.bootstrap, "again", 3)
    slices = [Replay(table=tmp_path / "raw", topic="again", bootstrap=node.bootstrap, batch=50)]
    run(spark, tmp_path, "again", jobs=slices)
    # As if killed between sending a slice and recording it: it is sent again under the same number.
    progress_file = tmp_path / "again" / "jobs" / "replay" / "replay.json"
    progress = json.loads(progress_file.read_text())
    assert (progress["slices"], progress["sent"]) == (3, 3)
    progress_file.write_text(json.dumps(progress | {"sent": 2}))
    run(spark, tmp_path, "again", jobs=slices)
    whole = [(each.key, each.value, each.timestamp_ms, each.headers) for each in records_of(node.bootstrap, orders)]
    back = [(each.key, each.value, each.timestamp_ms, each.headers) for each in records_of(node.bootstrap, "again")]
    assert len(back) == ORDERS + 3
    assert back == whole, "partition by partition, in the same order, each once"

    create_topic(node.bootstrap, "some", 1)
    part: dict[str, Any] = {"from_": at(0.010), "to": at(0.020), "where": "cast(_key as string) <> 'u1-0'"}
    some = Replay(topic="some", rate=1000, order="time", **part)
    figures = run(spark, tmp_path, "some", source=source, jobs=[some])
    result = [json.loads(each.value or b"")["id"] for each in records_of(node.bootstrap, "some")]
    assert result == [n for n in range(10, 20) if n % 4 != 1]
    assert figures["replay"].rows_in == len(result)


def test_the_balance_of_a_topic_is_reported(spark: SparkSession, node: Node, orders: str, tmp_path: Path) -> None:
    jobs = [Skew(partitions=[6], keys={"by_id": "get_json_object(cast(value as string), '$.id')"})]
    pipeline = Pipeline(
        name="skew",
        checkpoint=str(tmp_path / "skew"),
        source=Source(bootstrap=node.bootstrap, topic=orders),
        jobs=jobs,
    )
    figures = pipeline.run(spark=spark, once=True).snapshot.jobs[0]
    (report,) = last_reports(pipeline, jobs[0])
    assert (report.topic, report.records, len(report.loads)) == (orders, ORDERS + 3, 3)
    assert report.followed["murmur2"] == 1.0
    assert {(each.key, each.partitions) for each in report.predictions} >= {("as it is", 6), ("by_id", 3)}
    assert figures.rows_in == ORDERS + 3
    assert figures.figures["cause"] == report.cause
