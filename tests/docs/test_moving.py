"""The commands of docs/moving.md run against Apache Kafka: the command line, a worker with dead letters, a pipeline.

Skipped if Kafka's archives are unavailable.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kafka_broker import KafkaBroker
from support.page_scripts import block_kinds, run_script, sections
from support.patience import with_time

PAGE = "moving.md"
PAGE_ADDRESS = "kafka-1:9092"


def page_script() -> str:
    """All sections in order: each continues with the results of the previous ones."""
    return "".join(script for name, script in sections(PAGE))


@with_time
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_work_with_apache_kafka(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    kafka = KafkaBroker(tmp_path / "kafka")
    folder = tmp_path / "user"
    folder.mkdir()
    try:
        kafka.start()
        output = run_script(page_script().replace(PAGE_ADDRESS, kafka.bootstrap), folder)
    finally:
        kafka.terminate()
    assert "billing" in output
    assert "ValueError" in output


def test_the_page_uses_one_address() -> None:
    assert block_kinds(PAGE) <= {"sh", "text"}
    assert f"MILLPOND_BOOTSTRAP={PAGE_ADDRESS}" in page_script()
    assert page_script().count(PAGE_ADDRESS) == 1
