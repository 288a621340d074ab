"""`millpond pipeline run` with Spark itself: watched, scraped, stopped, refused, gone on with, and failed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import spark_drip
from support.patience import with_time

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_SECONDS = 150.0
"""Spark starts in five seconds; on a machine that is busy with other tests it takes its time."""


QUICK = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""Java that is to run for seconds need not make its code fast first."""


class Running:
    """`millpond pipeline …` in a process of its own, with the kind `drip`, and without our Python on the PATH."""

    def __init__(self, *arguments: str, cwd: Path, **environment: str) -> None:
        kept = {name: each for name, each in os.environ.items() if not name.startswith(("MILLPOND", "PYSPARK"))}
        self.process = subprocess.Popen(
            [sys.executable, spark_drip.__file__, "pipeline", *arguments, *(QUICK if arguments[0] == "run" else ())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=kept | {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"} | environment,
        )
        self.snapshots: list[dict[str, Any]] = []

    def until(self, condition: Any) -> dict[str, Any]:
        """Read lines of JSON until one is as wanted."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if not select.select([self.process.stdout], [], [], 1)[0]:
                continue
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1].decode()
            self.snapshots.append(json.loads(line))
            if condition(self.snapshots[-1]):
                return self.snapshots[-1]
        raise AssertionError(f"it never came: {self.snapshots[-1:]}")

    def finish(self) -> tuple[int, list[dict[str, Any]], str]:
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    started: list[Running] = []

    def go(*arguments: str, **environment: str) -> Running:
        started.append(Running(*arguments, cwd=tmp_path, **environment))
        return started[-1]

    yield go
    for each in started:
        each.close()


TWO_DRIPS = """
name = "drops"
[[drip]]
rows_per_second = 20
[[drip]]
name = "slow"
trigger = "2 seconds"
fail_at = {fail_at}
words = "the tap is closed"
"""


def test_a_run_from_its_start_over_a_stop_to_its_failure(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "drops.toml"
    file.write_text(TWO_DRIPS.format(fail_at=1_000_000))
    first = start("run", "drops.toml", "--json", "--metrics", "0")
    seen = first.until(lambda each: all(job["batch"] for job in each["jobs"]) and each["jobs"][0]["rows_out"])
    assert (seen["state"], [job["name"] for job in seen["jobs"]]) == ("running", ["drip", "slow"])
    assert seen["jobs"][0]["bad"] == 0

    scraped = urllib.request.urlopen(seen["metrics"], timeout=20).read().decode()
    assert 'millpond_pipeline_up{pipeline="drops"} 1\n' in scraped
    assert 'millpond_pipeline_rows_out_total{pipeline="drops",job="slow",kind="drip"}' in scraped

    code, _, err = start("run", "drops.toml", "--json").finish()
    assert code == 1
    assert f"drops runs already, as process {first.process.pid}" in err
    (status,) = _status(start)
    assert (status["condition"], status["pid"]) == ("running", first.process.pid)

    first.process.send_signal(signal.SIGTERM)
    code, snapshots, err = first.finish()
    assert (code, err) == (0, "")
    assert snapshots[-1]["state"] == "stopped"
    assert {job["state"] for job in snapshots[-1]["jobs"]} == {"stopped"}
    (status,) = _status(start)
    assert status["condition"] == "stopped"
    stopped_at = snapshots[-1]["jobs"][1]["batch"]

    file.write_text(TWO_DRIPS.format(fail_at=stopped_at + 2))
    second = start("run", "drops.toml", "--json")
    code, snapshots, err = second.finish()
    assert code == 1
    assert err.startswith("millpond: slow failed: ValueError: the tap is closed.\nSpark's log is in ")
    assert err.count("\n") == 2, "no stack trace"
    drip, slow = snapshots[-1]["jobs"]
    assert (drip["state"], slow["state"], slow["batch"]) == ("stopped", "failed", stopped_at + 1), (
        "went on from there"
    )
    assert "the tap is closed" in Path(snapshots[-1]["log"]).read_text()
    (status,) = _status(start)
    assert (status["condition"], status["error"]) == ("failed", "slow failed: ValueError: the tap is closed")


def _status(start: Any) -> list[dict[str, Any]]:
    process = start("status", "--json").process
    statuses: list[dict[str, Any]] = json.loads(process.communicate(timeout=PATIENCE_SECONDS)[0])
    return statuses


ORDERS = """
name = "orders"
[source]
bootstrap = "${BROKERS}"
topic = "orders"
group = "billing"
[parse]
format = "json"
schema = "id long, total double"
bad_records = "dead_letters"
[[transform]]
sql = "select id, total * 2 as twice, _offset from input"
[[archive]]
table = "lake/all"
partition_by = []
[[archive]]
name = "copy"
table = "lake/copy"
partition_by = []
"""


@with_time
def test_a_topic_with_a_bad_record_into_two_tables_once(start: Any, start_node: Any, tmp_path: Path) -> None:
    from confluent_kafka import Producer
    from deltalake import DeltaTable

    node = start_node()
    producer = Producer({"bootstrap.servers": node.address, "log_level": 0})
    for number in range(200):
        value = "poison" if number == 77 else json.dumps({"id": number, "total": number / 2})
        producer.produce("orders", value)
    assert producer.flush(30) == 0
    (tmp_path / "orders.toml").write_text(ORDERS)
    run = start("run", "orders.toml", "--once", "--json", BROKERS=node.address)
    code, snapshots, err = run.finish()
    assert (code, err) == (0, "")
    last = snapshots[-1]
    assert (last["state"], last["dead_letters"]) == ("finished", {"orders.dlq": 1})
    assert [(job["state"], job["lag"], job["bad"]) for job in last["jobs"]] == [
        ("finished", 0, 1),
        ("finished", 0, None),
    ]
    for table in ("all", "copy"):
        rows = DeltaTable(tmp_path / "lake" / table).to_pyarrow_table().to_pylist()
        assert sorted(row["twice"] for row in rows) == [float(number) for number in range(200) if number != 77]
