"""Jobs where Spark has several processes: a standalone cluster, and Connect.

Executors share nothing with the driver but the network, so whatever a task needs must travel with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.node import Node
from support.patience import with_time
from support.raw import Raw
from support.raw_transactions import committed_values
from support.spark_child import LOOPBACK, QUICK_START, SparkChild
from support.spark_cluster import EXECUTOR, SparkCluster
from support.topics import create_topic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("java") is None, reason="Spark needs Java: apt-get install openjdk-17-jre-headless"
    ),
]
RECORDS = 200
PROGRAM = Path(sys.executable).parent / "millpond"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def copy_twice(child: SparkChild, node: Node, topic: str, checkpoint: Path) -> None:
    """Two runs of one exactly-once job copy every record once."""
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(node.bootstrap, source, 3)
    create_topic(node.bootstrap, target, 2)
    place = {"kafka__bootstrap__servers": node.bootstrap}
    taken = {**place, "subscribe": source, "startingOffsets": "earliest", "minPartitions": 4}
    given = {**place, "topic": target, "delivery": "exactly_once"}
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for run in range(2):
        for number in range(run * RECORDS, (run + 1) * RECORDS):
            producer.produce(source, str(number), key=str(number % 7))
        assert producer.flush(60) == 0
        assert child.copy("millpond", taken, "millpond", given, checkpoint) == RECORDS
    with Raw(node.port) as raw:
        values = [int(value) for partition in range(2) for value in committed_values(raw, target, partition)]
    assert sorted(values) == list(range(2 * RECORDS))
    result = child.read("millpond", **place, subscribe=source)
    assert len(result["rows"]) == 2 * RECORDS


@with_time
def test_a_standalone_cluster_runs_a_job_exactly_once(
    cluster: SparkCluster, node: Node, topic: str, tmp_path: Path
) -> None:
    with SparkChild(tmp_path, EXECUTOR, cluster.master) as child:
        copy_twice(child, node, topic, tmp_path / "checkpoint")
    assert cluster.executors() == 1


@with_time
def test_a_standalone_cluster_runs_a_pipeline_from_the_command_line(
    cluster: SparkCluster, node: Node, topic: str, tmp_path: Path
) -> None:
    create_topic(node.bootstrap, topic, 2)
    declared = tmp_path / "orders.toml"
    declared.write_text(f"""
        name = "orders"
        checkpoint = "{tmp_path}/state"
        [source]
        topic = "{topic}"
        bootstrap = "{node.bootstrap}"
        [parse]
        format = "json"
        schema = "id long, total double"
        [archive]
        table = "{tmp_path}/orders"
    """)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"id": number, "total": number / 4}))
    assert producer.flush(60) == 0
    settings = {**LOOPBACK, **EXECUTOR, "spark.local.dir": str(tmp_path / "local")}
    words = [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
    done = subprocess.run(
        [str(PROGRAM), "pipeline", "run", str(declared), "--once", "--quiet", "--master", cluster.master, *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, **QUICK_START, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    deltalake = pytest.importorskip("deltalake")
    rows = deltalake.DeltaTable(tmp_path / "orders").to_pyarrow_table().to_pydict()
    assert sorted(zip(rows["id"], rows["total"], strict=True)) == [(n, n / 4) for n in range(RECORDS)]


@with_time
def test_connect_runs_a_job_exactly_once(node: Node, topic: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    with SparkChild(tmp_path, master="connect:local[2]") as child:
        copy_twice(child, node, topic, tmp_path / "checkpoint")
