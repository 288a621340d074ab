"""The short form of tests/campaigns/slow_clients.py: slow, silent, deaf and restless clients only hurt themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.crowd import KINDS
from support.node import Node
from support.slow_clients import fill, measure, percentile

COUNT = 300
SECONDS = 1.5
TIMES_MAX = 4
SPARE_SECONDS = 0.05
"""The campaign requires less than a factor of two on an otherwise idle machine; here other tests run as well."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_working_client_is_served_beside_a_crowd(kind: str, make_node: Callable[..., Node]) -> None:
    node = make_node()
    fill(node.port)
    trial = measure(node, kind, COUNT, 1, SECONDS, lambda _: 0)
    assert trial.connects >= min(COUNT, 200)
    limit = TIMES_MAX * percentile(trial.alone, 0.99) + SPARE_SECONDS
    assert percentile(trial.beside, 0.99) < limit, str(trial)
    assert node.is_running()
