"""Spark with a secure node, with SCRAM or a client certificate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.testing import Pond
from support.pages import blocks
from support.patience import with_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def options(pond: Pond, user: str = "admin") -> dict[str, str]:
    """The options that Spark's Kafka connector would need."""
    assert pond.security is not None
    if not pond.by_certificate:
        return {f"kafka.{name}": value for name, value in pond.security.client_settings().items()}
    return {
        "kafka.bootstrap.servers": pond.bootstrap,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(pond.security.authority_file),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(pond.security.certificate_of(user)),
    }


def copy(spark: SparkSession, settings: dict[str, str], source: str, target: str, checkpoint: str) -> None:
    rows = (
        spark.readStream.format("millpond")
        .options(**settings, subscribe=source, startingOffsets="earliest")
        .load()
        .selectExpr("value")
    )
    stream = (
        rows.writeStream.format("millpond")
        .options(**settings, topic=target, delivery="exactly_once", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert stream.awaitTermination(120)


@pytest.mark.parametrize("secure", [True, "certificates"], ids=["scram", "certificate"])
def test_a_stream_from_topic_to_topic(spark: SparkSession, checkpoint: str, secure: Any) -> None:
    with Pond(mode="process", secure=secure) as pond:
        source, target = pond.new_topic(2, "in"), pond.new_topic(1, "out")
        pond.produce(source, *(str(number) for number in range(50)))
        settings = options(pond)
        batch = spark.read.format("millpond").options(**settings).option("subscribe", source).load()
        assert batch.count() == 50
        copy(spark, settings, source, target, checkpoint)
        values = sorted(int(each.value or b"") for each in pond.consume(target, 50, timeout=30))
        assert values == list(range(50))


RIGHTS_OF_A_JOB = re.compile(r"^millpond (acl add --user job .*)$", re.MULTILINE)


def test_a_job_needs_only_the_documented_rights(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    with Pond(mode="process", secure="certificates") as pond:
        source, target = pond.new_topic(2, "in"), pond.new_topic(1, "out")
        pond.produce(source, *(str(number) for number in range(20)))
        file = tmp_path / "admin.properties"
        file.write_text("".join(f"{name.removeprefix('kafka.')}={text}\n" for name, text in options(pond).items()))
        file.chmod(0o600)
        own = [f"acl add --user job --topic {source} -o read", f"acl add --user job --topic {target} -o write"]
        for words in (*RIGHTS_OF_A_JOB.findall(page), *own):
            subprocess.run(
                [sys.executable, "-c", "import sys; from millpond.cli import main; sys.exit(main())", *words.split()],
                env=os.environ | {"MILLPOND_CLIENT_CONFIG": str(file)},
                check=True,
                timeout=60,
            )
        settings = options(pond, "job")
        copy(spark, settings, source, target, checkpoint)
        values = sorted(int(each.value or b"") for each in pond.consume(target, 20, timeout=30))
        assert values == list(range(20))


@with_time
def test_the_readme_example_works_with_the_client_file(tmp_path: Path) -> None:
    """Spark's processes inherit the environment of the job."""
    (block,) = [
        each for each in blocks() if each.page == "README.md" and each.first.startswith("import millpond.spark")
    ]
    with Pond(mode="process", secure=True) as pond:
        pond.create_topic("purchases")
        pond.produce("purchases", *(f"purchase {number}" for number in range(3)))
        assert pond.security is not None
        (tmp_path / "job.py").write_text(block.text)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK", "MILLPOND"))}
        done = subprocess.run(
            [sys.executable, "job.py"],
            cwd=tmp_path,
            env=kept | {"MILLPOND_CLIENT_CONFIG": str(pond.security.client_file)},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "purchase 2" in done.stdout
