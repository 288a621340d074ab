"""A setting of many partitions is applied over several turns of the loop, but before any later change of a role."""

from __future__ import annotations

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.broker.replication import replica_manager
from millpond.metadata.records import ConfigRecord, ResourceType
from millpond.wire import messages as m

COUNT = 40


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> NodeCluster:
    monkeypatch.setattr(replica_manager, "CONFIGURED_AT_ONCE", 2)
    cluster = NodeCluster(count=1)
    topic = m.CreateTopicsRequest.CreatableTopic(name="pond", num_partitions=COUNT, replication_factor=1)
    response = cluster.ask(1, m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    assert response.topics[0].error_code == 0
    cluster.wait(lambda: len(configured(cluster, None)) == COUNT)
    return cluster


def configured(cluster: NodeCluster, flush_messages: int | None) -> list[int]:
    """The partitions with this setting, or all for None."""
    partitions = [cluster.nodes[1].broker.partitions.get("pond", index) for index in range(COUNT)]
    return [
        each.name.partition
        for each in partitions
        if each is not None and flush_messages in (None, each.flush_messages)
    ]


def test_settings_are_applied_in_slices_and_before_a_role(cluster: NodeCluster) -> None:
    broker = cluster.nodes[1].broker
    record = ConfigRecord(ResourceType.TOPIC, "pond", "flush.messages", "7")
    broker.image.replay(record)
    ended: list[None] = []
    broker.replica_manager.on_records([record]).then(ended.append)
    assert 0 < len(configured(cluster, 7)) < COUNT
    last = broker.partitions.get("pond", COUNT - 1)
    assert last is not None
    assert last.flush_messages != 7
    broker.replica_manager.give_role(last)
    assert last.flush_messages == 7, "its leader would commit by the old settings in the new role"
    assert not ended
    cluster.wait(lambda: bool(ended))
    assert len(configured(cluster, 7)) == COUNT
