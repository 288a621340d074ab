"""docs/moving.md is tried as it stands, against a real broker of Apache Kafka: the command line, a worker with dead
letters, and a pipeline. Skipped where Kafka's archives cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kafka_broker import KafkaBroker
from support.page_scripts import block_kinds, run_script, sections
from support.patience import with_time

PAGE = "moving.md"
WRITTEN_ADDRESS = "kafka-1:9092"


def walk() -> str:
    """All sections one after the other: each goes on with what the one before has made."""
    return "".join(script for name, script in sections(PAGE))


@with_time
@pytest.mark.timeout(600)
def test_the_page_is_true_of_apache_kafka(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    kafka = KafkaBroker(tmp_path / "kafka")
    folder = tmp_path / "user"
    folder.mkdir()
    try:
        kafka.start()
        told = run_script(walk().replace(WRITTEN_ADDRESS, kafka.bootstrap), folder)
    finally:
        kafka.terminate()
    assert "billing" in told
    assert "ValueError" in told


def test_the_page_names_one_address_that_can_be_replaced() -> None:
    assert block_kinds(PAGE) <= {"sh", "text"}
    assert f"MILLPOND_BOOTSTRAP={WRITTEN_ADDRESS}" in walk()
    assert walk().count(WRITTEN_ADDRESS) == 1
