"""A short campaign on a real cluster; `tests/campaigns/cluster.py` is the long one."""

from __future__ import annotations

import pytest

from millpond.testing import ponds
from support.cluster_campaign import run
from support.cluster_clients import SETTINGS, Load
from support.patience import with_time
from support.seeds import fresh_seed

MORE = ("kill -9 the controller", "SIGSTOP a leader", "cut one way", "rolling restart", "kill -9 all")


@pytest.mark.parametrize(
    ("faults", "copies"), [(("kill -9 a leader", "cut one off"), 300), pytest.param(MORE, 1000, marks=with_time)]
)
def test_nothing_is_lost_doubled_or_out_of_order_whatever_is_done(faults: tuple[str, ...], copies: int) -> None:
    with ponds(nodes=3, settings=SETTINGS) as cluster:
        outcome = run(cluster, faults, fresh_seed(), Load(copies=copies))
    assert not outcome.findings, outcome.findings
    assert outcome.acked > 500
    assert outcome.copied == copies
