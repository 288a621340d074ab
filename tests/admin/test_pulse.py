"""A cluster looked at twice, for real: what was written and read in between are its rates."""

from __future__ import annotations

import pytest

from millpond.admin.groups import commit_offsets
from millpond.admin.pulse import Pulse, look_at
from millpond.base.ids import TopicPartition
from millpond.remote.cluster import Cluster
from millpond.testing import Pond


def test_two_looks_give_rates() -> None:
    with Pond() as pond, Cluster({"bootstrap.servers": pond.bootstrap}) as cluster:
        pond.create_topic("orders", 2)
        pond.create_topic("orders.dlq", 1)
        pond.produce("orders.dlq", b"bad")
        commit_offsets(cluster, "billing", {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0})
        pulse = Pulse()
        pulse.add(look_at(cluster))
        assert pulse.rates is None
        pond.produce("orders", *[b"x"] * 10, partition=0)
        commit_offsets(cluster, "billing", {TopicPartition("orders", 0): 4})
        look = look_at(cluster)
        pulse.add(look)
        assert look.topics["orders"].partitions == 2
        assert look.topics["orders"].offsets == 10
        assert look.lag == 6
        assert pulse.rates is not None
        assert pulse.rates.written["orders"] > 0
        assert pulse.rates.written["orders.dlq"] == 0
        assert pulse.rates.read["billing"] / pulse.rates.written["orders"] == pytest.approx(0.4)
        assert not any(name.startswith("__") for name in look.topics)
