"""A cluster of three simulated nodes."""

from __future__ import annotations

import pytest
from tests.sim.cluster.node_cluster import NodeCluster


@pytest.fixture
def cluster() -> NodeCluster:
    return NodeCluster()
