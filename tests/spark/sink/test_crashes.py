"""Real Spark with failures after every step: read_committed has each record once.

The long version, with many more kills, is tests/campaigns/spark_exactly_once.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millpond.spark.sink.steps import Step
from support.patience import with_time
from support.spark_faults import KILL_DRIVER, KILL_NODE, KILL_PYTHON, RAISE
from support.spark_sink import Copy


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java: apt-get install openjdk-17-jre-headless")
@with_time
def test_each_record_arrives_once_despite_crashes_of_every_process(tmp_path: Path) -> None:
    faults = [
        (Step.FLUSHED.value, KILL_PYTHON),
        (Step.CHECKED.value, RAISE),
        (Step.FLUSHED.value, KILL_NODE),
        (Step.ENDED_SOME.value, KILL_PYTHON),
        (Step.ENDED_ALL.value, RAISE),
        (Step.DECIDED.value, KILL_DRIVER),
    ]
    copy = Copy(tmp_path, records=900, batch_rows=200, faults=faults)
    assert copy.run(seconds_max=350) == 0, copy.story()
    assert copy.left() == []
    assert (copy.driver_starts, copy.node_starts) == (2, 2)
