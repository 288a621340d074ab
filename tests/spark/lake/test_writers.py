"""The Delta sink in Spark: batch and stream, failures around the commit, and a killed driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from support.patience import with_time
from support.spark_lake import data_files, rows_of

pytest.importorskip("pyspark.sql", reason="pip install 'millpond[spark]'")

from pyspark import TaskContext, cloudpickle

from millpond.spark.lake import into_table
from millpond.spark.lake.location import Location
from millpond.spark.lake.writers import StreamWriter
from pyspark_millpond_delta import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

# A busy machine may need a minute for what takes a second on an idle one.
pytestmark = pytest.mark.timeout(400)
PATIENCE_S = 240

ROWS = 200
STEPS = ("after a task wrote", "before the commit", "after the commit")


class FaultyWriter(StreamWriter):
    """Fails once at each step that has a file in the folder of faults."""

    def __init__(self, inner: StreamWriter, faults: str) -> None:
        super().__init__(inner.sink)
        self.faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        done = super().write(iterator)
        if TaskContext.get().partitionId() == 0:
            self.fail("after a task wrote")
        return done

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.fail("before the commit")
        super().commit(messages, batchId)
        self.fail("after the commit")

    def fail(self, step: str) -> None:
        armed = Path(self.faults) / step
        if armed.exists():
            armed.unlink()
            raise RuntimeError(f"forced failure {step}")


class FaultySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "faulty_delta"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        faults = self.options.pop("faults")
        inner: Any = super().streamWriter(schema, overwrite)
        return FaultyWriter(inner, faults)


# Spark's workers cannot import this file, so its classes are pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def numbers(spark: SparkSession) -> DataFrame:
    """0, 1, 2, … in batches that are identical after every restart."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    return source.load().selectExpr("value", "value % 7 AS part", "value % 50 AS key", "value % 50 = 3 AS gone")


def run_until(query: StreamingQuery, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)
    query.stop()


def batches_in(path: Path, query: StreamingQuery) -> int:
    table = Location.of(str(path)).table()
    last = None if table is None else table.transaction_version(query.id)
    return 0 if last is None else last + 1


def break_and_finish(writer: DataStreamWriter, path: Path, faults: Path) -> int:
    """Run the stream into every fault, then for two more batches; the number of batches in the table."""
    faults.mkdir()
    for step in STEPS:
        (faults / step).touch()
        query = writer.start(str(path))
        with pytest.raises(Exception, match=f"forced failure {step}"):
            query.awaitTermination(PATIENCE_S)
        assert not (faults / step).exists()
    query = writer.start(str(path))
    before = batches_in(path, query)
    run_until(query, lambda: batches_in(path, query) >= before + 2)
    return batches_in(path, query)


def test_every_row_once_with_failures_after_every_step(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    spark.dataSource.register(FaultySource)
    faults, path = tmp_path / "faults", tmp_path / "table"
    writer = (
        numbers(spark)
        .writeStream.format("faulty_delta")
        .options(faults=str(faults), partitionBy="part", compactEvery="2", checkpointLocation=checkpoint)
    )
    batches = break_and_finish(writer, path, faults)
    assert sorted(row["value"] for row in rows_of(path)) == list(range(batches * ROWS))
    inside = {uri.removeprefix(f"{path}/") for uri in DeltaTable(path).file_uris()}
    assert inside <= set(data_files(path))


def test_upserts_with_failures_after_every_step(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    spark.dataSource.register(FaultySource)
    faults, path = tmp_path / "faults", tmp_path / "table"
    options = {"mode": "upsert", "keys": "key", "orderBy": "value", "deleteWhen": "gone"}
    writer = (
        numbers(spark)
        .writeStream.format("faulty_delta")
        .options(faults=str(faults), checkpointLocation=checkpoint, **options)
    )
    batches = break_and_finish(writer, path, faults)
    model = {number % 50: number for number in range(batches * ROWS) if number % 50 != 3}
    assert {row["key"]: row["value"] for row in rows_of(path)} == model
    assert len(rows_of(path)) == len(model)
    assert "gone" not in DeltaTable(path).schema().to_arrow().names


def test_update_mode_through_foreach_batch(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    path = tmp_path / "table"
    write = into_table(str(path), mode="upsert", keys="part", compactEvery=2)

    def twice(frame: DataFrame, batch_id: int) -> None:
        write(frame, batch_id)
        version = DeltaTable(path).version()
        write(frame, batch_id)
        assert DeltaTable(path).version() == version

    counts = numbers(spark).groupBy("part").count().writeStream.outputMode("update")
    query = counts.foreachBatch(twice).option("checkpointLocation", checkpoint).start()
    run_until(query, lambda: batches_in(path, query) >= 2)
    assert sum(row["count"] for row in rows_of(path)) == batches_in(path, query) * ROWS
    assert sorted(row["part"] for row in rows_of(path)) == list(range(7))


@pytest.mark.smoke
def test_batch_writes_and_reads(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    zone = spark.conf.get("spark.sql.session.timeZone")
    frame = spark.range(100).selectExpr(
        "id",
        "cast(id % 3 AS string) AS shop",
        "timestamp_micros(id * 1000001) AS at",
        "array(id) AS many",
        "map('a', id) AS named",
        "struct(id AS x, cast(id AS decimal(20, 3)) AS y) AS inner",
        "cast(id AS string) AS text",
        "encode(cast(id AS string), 'utf-8') AS raw",
    )
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        frame.write.format("millpond_delta").mode("append").option("partitionBy", "shop").save(path)
        result = spark.read.format("millpond_delta").load(path)
        assert sorted(result.collect()) == sorted(frame.collect())
        result.write.format("millpond_delta").mode("overwrite").option("partitionBy", "shop").save(path)
        assert spark.read.format("millpond_delta").load(path).count() == 100
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    first = spark.read.format("millpond_delta").schema("id long").option("versionAsOf", 0).load(path)
    assert sorted(row.id for row in first.collect()) == list(range(100))
    with pytest.raises(Exception, match=r"unknown option partitionbuy of millpond_delta; did you mean partitionBy\?"):
        frame.write.format("millpond_delta").mode("append").option("partitionBuy", "shop").save(path)
    with pytest.raises(Exception, match="belongs to no stream"):
        frame.write.format("millpond_delta").mode("append").option("ofStream", "true").save(path + "2")


def test_registering_the_format_loads_nothing_heavy() -> None:
    """Every session imports the module; the command line imports options and upkeep."""
    requests = "import sys, pyspark_millpond_delta, millpond.spark.lake.upkeep, millpond.spark.lake.options"
    report = "print([name for name in ('pyarrow', 'deltalake', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{requests}; {report}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


DRIVER = """
import sys
from pyspark.sql import SparkSession

checkpoint, table, rows = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
frame = source.load().selectExpr("value", "value % 7 AS part", "value % 50 AS key", "value % 50 = 3 AS gone")
writer = frame.writeStream.format("millpond_delta").option("checkpointLocation", checkpoint)
writer.start(table).awaitTermination()
"""


@with_time
def test_every_row_once_after_a_killed_driver(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    path = tmp_path / "table"
    with open(tmp_path / "driver.log", "wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, checkpoint, str(path), str(ROWS)],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(list(path.glob("_delta_log/*.json"))) < 2:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
            assert time.monotonic() < deadline, (tmp_path / "driver.log").read_text()[-2000:]
            time.sleep(0.01)
        # Not at the commit itself, but some time into the next batch.
        time.sleep(0.15)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
    writer = numbers(spark).writeStream.format("millpond_delta").option("checkpointLocation", checkpoint)
    query = writer.start(str(path))
    before = batches_in(path, query)
    assert before >= 2
    run_until(query, lambda: batches_in(path, query) >= before + 2)
    assert sorted(row["value"] for row in rows_of(path)) == list(range(batches_in(path, query) * ROWS))
