"""A declaration as a Spark Declarative Pipelines project: which jobs can be flows, and the example."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond import Producer
from millpond.spark import Aggregate, Archive, Quality, Replay, Skew
from millpond.spark.pipelines.declarative import flow_of
from millpond.spark.pipelines.values import DeclarationError
from millpond.spark.pipelines.worker_python import launcher
from support.node import Node
from support.patience import with_time
from support.spark_kinds import at, records_of
from support.topics import create_topic

if TYPE_CHECKING:
    from millpond.spark.pipelines.tables import Job

PROJECT = Path(__file__).parents[3] / "examples" / "declarative"
WINDOWS: dict[str, Any] = {"time": "at", "window": "1 m", "measures": {"n": "count(*)"}, "to": {"table": "t"}}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Replay(topic="t"), "replay is not a flow of rows"),
        (Skew(), "skew is not a flow of rows"),
        (Quality(rules={"a": "true"}, to={"table": "t"}), "two sinks"),
        (Aggregate(mode="update", **WINDOWS), 'declare it with mode = "append"'),
    ],
)
def test_a_job_that_is_not_a_flow_is_refused(job: Job, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        flow_of(job)
    assert flow_of(Archive(table="t")) == Archive(table="t")


@pytest.mark.slow
@pytest.mark.timeout(400)
@with_time
def test_the_example_project_runs(node: Node, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[pipelines]'")
    pytest.importorskip("yaml", reason="pip install 'pyspark[pipelines]'")
    deltalake = pytest.importorskip("deltalake")
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    declaration = (project / "spark-pipeline.yml").read_text()
    storage = re.sub(r"(?m)^storage: .*$", f"storage: file://{tmp_path}/storage", declaration)
    (project / "spark-pipeline.yml").write_text(storage)
    create_topic(node.bootstrap, "declarative.orders", 2)
    with Producer(node.bootstrap) as producer:
        for number, second in enumerate((0, 1, 59, 60, 600)):
            order = {"id": number, "customer": "ann", "region": "eu", "total": 10, "at": at(second).isoformat()}
            producer.send("declarative.orders", order, "ann")
        producer.send("declarative.orders", b"no JSON", "ann")
    run_project(project, node.bootstrap, tmp_path / "lake")
    table = deltalake.DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()
    result = zip(table["id"].to_pylist(), table["gross"].to_pylist(), strict=True)
    assert sorted(result) == [(number, 12.0) for number in range(5)]
    assert len(records_of(node.bootstrap, "declarative.orders.bad.dlq")) == 1
    windows = [json.loads(each.value or b"") for each in records_of(node.bootstrap, "declarative.orders.per-minute")]
    assert sorted((each["window_start"][11:16], each["orders"], each["revenue"]) for each in windows) == [
        ("12:00", 3, 36.0),
        ("12:01", 1, 12.0),
    ]
    assert any((tmp_path / "storage").rglob("offsets")), "the checkpoints are where the project says"


def run_project(project: Path, bootstrap: str, lake: Path) -> None:
    python = launcher(project)
    environment = {
        **os.environ,
        "MILLPOND_BOOTSTRAP": bootstrap,
        "LAKE": str(lake),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Optimizing compilation does not pay off for short jobs.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    tool = Path(sys.executable).with_name("spark-pipelines")
    ran = subprocess.run(
        [tool, "run", "--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false"],
        cwd=project, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
