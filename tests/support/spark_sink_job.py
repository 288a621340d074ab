"""A separate Spark driver: copies a topic into another with `delivery=exactly_once`, until everything is copied.

python spark_sink_job.py BOOTSTRAP FROM TO CHECKPOINT FAULTS BATCH_ROWS [OPTION=VALUE …]

A failed query is restarted in the same session; the parent restarts this process when it is killed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

TRIES_MAX = 40


def main(bootstrap: str, source: str, target: str, checkpoint: str, faults: str, batch_rows: str, *given: str) -> int:
    import pyarrow  # noqa: F401 - loaded once here, so that the forked workers need not
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import StreamingQueryException

    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("copy exactly once")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        # It runs for a minute: a quick start is worth more than fast code.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(Path(checkpoint).parent / "local"))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    (Path(faults) / "driver.pids").write_text(f"{gateway.proc.pid} {os.getpid()}")
    rows = (
        session.readStream.format("millpond")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
        .select("key", "value")
    )
    for attempt in range(TRIES_MAX):
        writer = (
            rows.writeStream.format("millpond")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("delivery", "exactly_once")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
        )
        for each in given:
            writer = writer.option(*each.split("=", 1))
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as fault:
            print(f"{time.strftime('%X')} try {attempt}: {str(fault)[:1500]}", flush=True)
            if "BatchTorn" in str(fault):
                return 3
        else:
            print("everything is copied", flush=True)
            # A clean stop of Spark takes seconds, and nothing here needs it.
            gateway.proc.kill()
            os._exit(0)
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
