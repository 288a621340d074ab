"""A pipeline into tables and topics neither loses nor duplicates rows when its processes are killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.node import Node
from support.patience import with_time
from support.spark_kills import Plan, run

pytest.importorskip("pyspark")


@with_time
@pytest.mark.timeout(600)
def test_every_row_is_there_once_after_kills(make_node: Callable[..., Node], tmp_path: Path) -> None:
    plan = Plan(records=3_000, driver_kills=1, worker_kills=1, node_kills=1)
    tally = run(make_node(), tmp_path, plan)
    assert dict(tally.kills) == {"driver": 1, "worker": 1, "node": 1}
    assert tally.rows == 3_000 + 3
    assert tally.windows == 3_000 // 200 * 5
