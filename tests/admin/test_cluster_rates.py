"""A cluster looked at twice, for real: what was written and read in between are its rates."""

from __future__ import annotations

import pytest

from millpond.admin.cluster_rates import RateWindow, sample_cluster
from millpond.admin.groups import commit_offsets
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Pond


def test_two_looks_give_rates() -> None:
    with Pond() as pond, Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        pond.create_topic("orders", 2)
        pond.create_topic("orders.dlq", 1)
        pond.produce("orders.dlq", b"bad")
        commit_offsets(cluster, "billing", {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0})
        window = RateWindow()
        window.add(sample_cluster(cluster))
        assert window.rates is None
        pond.produce("orders", *[b"x"] * 10, partition=0)
        commit_offsets(cluster, "billing", {TopicPartition("orders", 0): 4})
        sample = sample_cluster(cluster)
        window.add(sample)
        assert sample.topics["orders"].partitions == 2
        assert sample.topics["orders"].offsets == 10
        assert sample.lag == 6
        assert window.rates is not None
        assert window.rates.written["orders"] > 0
        assert window.rates.written["orders.dlq"] == 0
        assert window.rates.read["billing"] / window.rates.written["orders"] == pytest.approx(0.4)
        assert not any(name.startswith("__") for name in sample.topics)
