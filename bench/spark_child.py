"""A Spark session in a separate process, which runs the jobs that it reads from standard input."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

from bench.spark_ceiling import PARTITIONS, VALUE_BYTES, Ceiling

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}


def session_of(settings: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").appName("millpond bench")
    for name, text in {**SETTINGS, **settings}.items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(Ceiling)
    return session


def read(session: Any, kind: str, options: dict[str, str], rows: int) -> None:
    """Read all rows of the source and discard them."""
    session.read.format(kind).options(**options).load().write.format("noop").mode("overwrite").save()


def count(session: Any, kind: str, options: dict[str, str], rows: int) -> None:
    """Check that the source returns every row: a source that omits some would look fast."""
    found = session.read.format(kind).options(**options).load().selectExpr("count(value)").first()[0]
    if found != rows:
        raise ValueError(f"{kind} has {found:,} of {rows:,} rows")


def write(session: Any, kind: str, options: dict[str, str], rows: int) -> None:
    """Write this many rows, which cost almost nothing to create."""
    if kind == "millpond_delta":
        shutil.rmtree(options["path"], ignore_errors=True)
    frame = session.range(0, rows, 1, PARTITIONS).selectExpr(f"cast(rpad('', {VALUE_BYTES}, 'v') as binary) as value")
    frame.write.format(kind).options(**options).mode("append").save()


def main() -> None:
    session = session_of(json.loads(sys.argv[1]))
    print(json.dumps({"ready": session.version}), flush=True)
    verbs = {"read": read, "count": count, "write": write}
    for line in sys.stdin:
        words = json.loads(line)
        began = time.perf_counter()
        try:
            verbs[words.pop("do")](session, **words)
            told: dict[str, Any] = {"seconds": time.perf_counter() - began}
        except Exception as fault:
            told = {"failed": f"{type(fault).__name__}: {fault}"[:500]}
        print(json.dumps(told), flush=True)
    session.stop()


if __name__ == "__main__":
    main()
