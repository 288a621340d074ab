"""A Spark session in a separate process, with the given archives or cluster, that runs commands.

`SparkChild` is the test's end. The child reads one JSON object a line and answers each with one.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS_MAX = 200.0
ANSWER_SECONDS_MAX = 250.0
QUERY_SECONDS_MAX = 240.0
QUICK_START = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A short run does not pay for optimized code: this halves the CPU time of a test."""

CONNECT = "connect:"
"""Prefixes the master of a Connect server that is started for the child."""

LOOPBACK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.task.maxFailures": "1",
}


class Failed(Exception):
    """Spark failed; the text is its own."""


class SparkChild:
    """`settings` are Spark's own; they extend those that keep it small and on loopback."""

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None, master: str = "local[2]") -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._log_path = root / "spark-log.txt"
        folders = {"spark.local.dir": str(root / "local"), "spark.sql.warehouse.dir": str(root / "warehouse")}
        given = {"master": master, "settings": {**LOOPBACK, **folders, **(settings or {})}}
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **python, **QUICK_START, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        try:
            self._answer(START_SECONDS_MAX)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SparkChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, kind: str, **options: object) -> dict[str, Any]:
        """A batch: `schema`, and `rows`, each as values in the order of topic, partition, offset."""
        return self._ask("read", kind=kind, options=_texts(options))

    def write(self, kind: str, sql: str, **options: object) -> None:
        """Write the result of the query as a batch."""
        self._ask("write", kind=kind, sql=sql, options=_texts(options))

    def copy(
        self, source: str, taken: Mapping[str, object], sink: str, given: Mapping[str, object], checkpoint: Path
    ) -> int:
        """Stream everything available now from one to the other; returns how many rows were read."""
        told = self._ask(
            "copy", kind=source, options=_texts(taken), sink=sink, given=_texts(given), checkpoint=str(checkpoint)
        )
        return int(told["rows"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, verb: str, **words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb, **words}).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(ANSWER_SECONDS_MAX)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = self._process.stdout.readline()
            if not line:
                raise AssertionError(f"the Spark process ended: {self._log_path.read_text(errors='replace')[-3000:]}")
            # Spark's launcher prints here as well.
            if line.startswith(b"{"):
                lines: dict[str, Any] = json.loads(line)
                if "failed" in lines:
                    raise Failed(lines["failed"])
                return lines
        raise AssertionError(f"no answer in {seconds} s: {self._log_path.read_text(errors='replace')[-3000:]}")


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Python names have no dots: two underscores stand for one."""
    return {name.replace("__", "."): str(value) for name, value in options.items()}


# The child's end.


def main() -> None:
    from pyspark.sql import SparkSession

    given = json.loads(sys.argv[1])
    master = given["master"]
    is_remote = master.startswith(CONNECT)
    builder = SparkSession.builder.appName("millpond tests")
    builder = builder.remote(master.removeprefix(CONNECT)) if is_remote else builder.master(master)
    for name, text in given["settings"].items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    if not is_remote:
        session.sparkContext.setLogLevel("OFF")
    print(json.dumps({"ready": session.version}), flush=True)
    verbs = {"read": _read, "write": _write, "copy": _copy}
    for line in sys.stdin:
        words = json.loads(line)
        try:
            told = verbs[words.pop("do")](session, **words)
        except Exception as fault:
            told = {"failed": f"{type(fault).__name__}: {fault}".split("\n\tat ")[0][:6000]}
        print(json.dumps(told), flush=True)
    session.stop()


def _read(session: Any, kind: str, options: dict[str, str]) -> dict[str, Any]:
    frame = session.read.format(kind).options(**options).load()
    # A timestamp as a number: Python's own do not go back far enough.
    plain = frame.withColumn("timestamp", frame["timestamp"].cast("timestamp_ntz").cast("string"))
    rows = sorted(plain.collect(), key=lambda row: (row.topic, row.partition, row.offset))
    return {
        "schema": json.loads(frame.schema.json()),
        "rows": [[_plain(value) for value in row] for row in rows],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode() if value else ""
    if isinstance(value, list):
        return [[_plain(each) for each in entry] for entry in value]
    return value


def _write(session: Any, kind: str, sql: str, options: dict[str, str]) -> dict[str, Any]:
    session.sql(sql).write.format(kind).options(**options).mode("append").save()
    return {}


def _copy(
    session: Any, kind: str, options: dict[str, str], sink: str, given: dict[str, str], checkpoint: str
) -> dict[str, Any]:
    frame = session.readStream.format(kind).options(**options).load().select("key", "value")
    query = (
        frame.writeStream.format(sink)
        .options(**given)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_SECONDS_MAX):
        query.stop()
        raise TimeoutError(f"the query has not ended after {QUERY_SECONDS_MAX} s")
    return {"rows": sum(each.numInputRows for each in query.recentProgress)}


if __name__ == "__main__":
    main()
