"""docs/tutorial.md is run from its first line to its last, in twenty minutes or much less."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.page_scripts import run_in_own_network, sections
from support.patience import with_time

PAGE = "tutorial.md"
TABLE = "A table"


def walk(*, with_spark: bool) -> str:
    """All sections one after the other: each goes on with what the one before has made."""
    return "".join(script for name, script in sections(PAGE) if with_spark or name != TABLE)


@pytest.mark.slow
def test_the_tutorial_up_to_spark(tmp_path: Path) -> None:
    told = run_in_own_network(walk(with_spark=False), tmp_path)
    for text in ("30 orders are sent", "the total is -1.0", "refund", "1 passed"):
        assert text in told


@with_time
@pytest.mark.timeout(700)
def test_the_whole_tutorial(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'millpond[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    told = run_in_own_network(walk(with_spark=True), tmp_path, seconds_max=600)
    for text in ("Looked at 32 records of orders.", "is done after", ": 32 rows read.", "in all"):
        assert text in told
