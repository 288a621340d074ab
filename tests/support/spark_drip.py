"""The `millpond` command with an extra kind for tests: `drip` counts rows that come without any topic.

Run as a program it is the command: `python spark_drip.py pipeline run FILE`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from millpond.spark.pipelines.context import JobContext
from millpond.spark.pipelines.kind import Kind
from millpond.spark.pipelines.plan import Plan
from millpond.spark.pipelines.tables import Job
from millpond.spark.pipelines.values import NAME, TEXT, value, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class Drip(Job):
    """A fixed number of rows a second, written to nothing."""

    kind: ClassVar[str] = "drip"
    reads_source: ClassVar[bool] = False

    rows_per_second: int = value("How many.", whole(1, 1_000_000), 10)
    fail_at: int = value("The batch that fails.", whole(0, 1_000_000), 1_000_000)
    words: str = value("What the failure says.", TEXT, "the tap is closed")
    seconds: int = value("How long a batch takes.", whole(0, 100), 0)
    column: str = value("A column to read.", NAME, "value")


def plan(context: JobContext, job: Drip) -> Plan:
    def write(batch: DataFrame, number: int) -> None:
        if number >= job.fail_at:
            raise ValueError(job.words)
        batch.write.format("noop").mode("append").save()
        time.sleep(job.seconds)
        context.set_figure("last", number)

    frame = context.spark.readStream.format("rate").option("rowsPerSecond", job.rows_per_second).load()
    frame = frame.select(job.column).observe("counts", *_counts())
    return context.plan(frame.writeStream.foreachBatch(write))


def _counts() -> list[object]:
    from pyspark.sql import functions as f

    return [f.count(f.lit(1)).alias("rows_out"), f.lit(0).cast("long").alias("bad")]


KIND = Kind(
    name="drip",
    doc="Rows that come by themselves.",
    job=Drip,
    plan=plan,
    example="[drip]\nrows_per_second = 5\n",
)


def add_kind() -> None:
    from millpond.spark.pipelines.kinds import KINDS

    KINDS["drip"] = KIND  # type: ignore[index]


if __name__ == "__main__":
    from millpond.cli import main

    add_kind()
    sys.exit(main())
