"""Spark against a secure node, which it logs in to by SCRAM or by a certificate."""

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
    """As somebody would give them who comes from Spark's connector for Kafka."""
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


@pytest.mark.parametrize("secure", [True, "certificates"], ids=["scram", "certificate"])
def test_a_stream_from_topic_to_topic(spark: SparkSession, checkpoint: str, secure: Any) -> None:
    with Pond(mode="process", secure=secure) as pond:
        source, target = pond.new_topic(2, "in"), pond.new_topic(1, "out")
        pond.produce(source, *(str(number) for number in range(50)))
        told = options(pond)
        batch = spark.read.format("millpond").options(**told).option("subscribe", source).load()
        assert batch.count() == 50
        stream = (
            spark.readStream.format("millpond")
            .options(**told)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("value")
            .writeStream.format("millpond")
            .options(**told)
            .option("topic", target)
            .option("delivery", "exactly_once")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert stream.awaitTermination(120)
        values = sorted(int(each.value or b"") for each in pond.consume(target, 50, timeout=30))
        assert values == list(range(50))


RIGHTS_OF_A_JOB = re.compile(r"^millpond (acl add --user job .*)$", re.MULTILINE)


def test_a_job_needs_no_more_than_the_page_says(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
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
        told = options(pond, "job")
        stream = (
            spark.readStream.format("millpond")
            .options(**told)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("value")
            .writeStream.format("millpond")
            .options(**told)
            .option("topic", target)
            .option("delivery", "exactly_once")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert stream.awaitTermination(120)
        values = sorted(int(each.value or b"") for each in pond.consume(target, 20, timeout=30))
        assert values == list(range(20))


@with_time
def test_the_snippet_of_the_readme_by_the_variable(tmp_path: Path) -> None:
    """Spark's processes have the environment that the job was started with."""
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
