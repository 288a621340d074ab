"""A real node for the tests of `admin`, and a cluster client for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millpond.remote.cluster import Cluster
from millpond.testing import Pond

QUICK_GROUPS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500"}


@pytest.fixture(scope="session")
def pond() -> Iterator[Pond]:
    with Pond(settings=QUICK_GROUPS) as started:
        yield started


@pytest.fixture
def cluster(pond: Pond) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": pond.bootstrap, "default.api.timeout.ms": "15000"}) as opened:
        yield opened


@pytest.fixture
def topic(pond: Pond) -> str:
    """A fresh topic of two partitions."""
    return pond.new_topic(2)
