"""docs/tutorial.md runs from the first line to the last."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.page_scripts import run_in_own_network, sections
from support.patience import with_time

PAGE = "tutorial.md"
SPARK_SECTION = "A table"


def page_script(*, with_spark: bool) -> str:
    """All sections in order: each continues with the results of the previous ones."""
    return "".join(script for name, script in sections(PAGE) if with_spark or name != SPARK_SECTION)


@pytest.mark.slow
def test_the_tutorial_works_without_spark(tmp_path: Path) -> None:
    output = run_in_own_network(page_script(with_spark=False), tmp_path)
    for text in ("30 orders are sent", "the total is -1.0", "refund", "1 passed"):
        assert text in output


@with_time
@pytest.mark.timeout(700)
def test_the_tutorial_works_with_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    output = run_in_own_network(page_script(with_spark=True), tmp_path, seconds_max=600)
    for text in ("Looked at 32 records of orders.", "is done after", ": 32 rows read.", "in all"):
        assert text in output
