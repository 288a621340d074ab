"""A controller changes many partitions slice by slice. A slice that cannot be written is written later."""

from __future__ import annotations

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import done
from millpond.metadata import configs, elections
from millpond.metadata.records import PartitionChangeRecord, ResourceType
from millpond.wire import messages as m

MIN_ISR = "min.insync.replicas"
FULL_MS = 3_000


class FullController:
    """A cluster whose controller cannot write any more after the first slice for a broker that died.

    It has no successor, because the other nodes have no majority.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
        self.cluster = NodeCluster()
        self.victim = self.cluster.other(self.cluster.controller_id)
        self.cluster.create(self.victim, partitions)
        self.is_full = False
        self.attempts = 0
        controller = self.cluster.nodes[self.cluster.controller_id].broker.controller
        write = controller.host.write

        def write_if_possible(batch: bytes) -> None:
            if self.is_full:
                self.attempts += 1
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")
            write(batch)
            self.is_full = not self.cluster.nodes[self.victim].is_up

        monkeypatch.setattr(controller.host, "write", write_if_possible)
        monkeypatch.setattr(controller.host, "hand_over", lambda: None)

    def led_by_victim(self) -> int:
        return sum(each.leader == self.victim for each in self.cluster.image.topics["pond"].partitions)


@pytest.mark.parametrize("partitions", [7, 11])
def test_a_dead_broker_loses_its_partitions_once_the_controller_can_write_again(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(elections, "SLICE", 4)
    full = FullController(monkeypatch, partitions)
    full.cluster.nodes[full.victim].kill()
    full.cluster.wait(lambda: full.attempts > 0)
    full.cluster.sim.run_for(FULL_MS)
    assert full.led_by_victim() == partitions - 4, "the first slice was written"
    assert full.attempts < 50, "a controller that cannot write must not be busy with it"
    monkeypatch.undo()
    full.cluster.wait(lambda: full.led_by_victim() == 0)


def test_a_change_of_min_insync_replicas_is_written_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand partitions it was one batch of as many records."""
    monkeypatch.setattr(configs, "SLICE", 4)
    cluster = NodeCluster()
    victim = cluster.other(cluster.controller_id)
    cluster.create(cluster.controller_id, 11, min_isr="3")
    cluster.nodes[victim].kill()
    cluster.wait(lambda: all(each.elr == (victim,) for each in cluster.image.topics["pond"].partitions))
    sizes: list[int] = []
    cluster.nodes[cluster.controller_id].broker.controller.observers.on_change(
        lambda records: done(sizes.append(sum(isinstance(each, PartitionChangeRecord) for each in records)))
    )
    config = m.IncrementalAlterConfigsRequest.AlterableConfig(name=MIN_ISR, config_operation=0, value="2")
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name="pond", configs=[config]
    )
    request = m.IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = cluster.ask(cluster.controller_id, request, 1).responses
    assert result.error_code == ErrorCode.NONE
    assert [each for each in sizes if each] == [4, 4, 3]
    assert cluster.image.topic_config("pond")[MIN_ISR] == "2"
    assert not any(each.elr for each in cluster.image.topics["pond"].partitions)
