"""The share coordinators of a cluster: state is read and written wherever it is, also after a failover."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.sim.cluster.node_cluster import NodeCluster

from millpond.base.errors import ErrorCode, Refused
from millpond.broker.coordination.share_state import ReadState
from millpond.coordinators.shares.keys import SharePartition
from millpond.coordinators.shares.state_batches import RecordState, StateBatch
from millpond.metadata.image import SHARE_STATE_TOPIC
from millpond.wire import messages as m

FINISHED = [StateBatch(0, 2, RecordState.ACKNOWLEDGED, 0), StateBatch(3, 3, RecordState.AVAILABLE, 1)]


class ShareStates:
    """A cluster with a topic, and calls about share partitions from any of its nodes."""

    def __init__(self, cluster: NodeCluster) -> None:
        self.cluster = cluster
        self.topic_id: UUID = cluster.create(1, 6).id

    def key(self, number: int = 0) -> SharePartition:
        return SharePartition("crew", self.topic_id, number)

    def leader_of(self, key: SharePartition) -> int:
        """The node that is its share coordinator now, or -1."""
        for node in self.cluster.nodes.values():
            if node.is_up and node.broker.controller.is_active:
                index = node.broker.shares.partition_of(key.coordinator_key)
                partition = node.broker.image.partition(SHARE_STATE_TOPIC, index)
                return -1 if partition is None else partition.leader
        return -1

    def ask(self, node_id: int, call: str, *arguments: Any, within_ms: int = 20_000) -> Any:
        ended: list[Any] = []
        getattr(self.cluster.nodes[node_id].broker.share_state, call)(*arguments).then(ended.append, ended.append)
        self.cluster.wait(lambda: bool(ended), within_ms)
        if isinstance(ended[0], Exception):
            raise ended[0]
        return ended[0]


@pytest.fixture
def states(cluster: NodeCluster) -> ShareStates:
    return ShareStates(cluster)


def test_state_is_written_on_one_node_and_read_on_all_others(states: ShareStates) -> None:
    """The first call also creates the internal topic."""
    for number in range(6):
        states.ask(1, "initialize", states.key(number), 1, 0)
    assert len({states.leader_of(states.key(number)) for number in range(6)}) > 1, "they are spread over the nodes"
    for number in range(6):
        states.ask(2, "write", states.key(number), 1, 0, number, FINISHED)
        for node_id in (1, 2, 3):
            read = states.ask(node_id, "read", states.key(number), 0)
            assert (read.state_epoch, read.start_offset) == (1, number)
    states.ask(3, "delete", states.key())
    with pytest.raises(Refused) as refused:
        states.ask(1, "read", states.key(), 0)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_state_survives_the_loss_of_its_coordinator(states: ShareStates, end: str) -> None:
    states.ask(1, "initialize", states.key(), 1, 0)
    states.ask(1, "write", states.key(), 1, 4, 1, FINISHED)
    coordinator = states.leader_of(states.key())
    others = [node_id for node_id in (1, 2, 3) if node_id != coordinator]
    getattr(states.cluster.nodes[coordinator], end)()
    more = [StateBatch(3, 3, RecordState.ACKNOWLEDGED, 0)]
    states.ask(others[0], "write", states.key(), 1, 4, 1, more)
    expected = ReadState(1, 1, [StateBatch(1, 3, RecordState.ACKNOWLEDGED, 0)])
    assert states.ask(others[1], "read", states.key(), 4) == expected
    with pytest.raises(Refused) as refused:
        states.ask(others[0], "write", states.key(), 1, 3, 9, [])
    assert refused.value.code == ErrorCode.FENCED_LEADER_EPOCH
    assert states.cluster.nodes[coordinator].start()
    states.cluster.wait(states.cluster.is_whole)
    assert states.ask(coordinator, "read", states.key(), 4) == expected


def test_a_deposed_coordinator_answers_no_read(states: ShareStates) -> None:
    """It still takes itself for the leader while it is paused; what others have written since must not be missed."""
    states.ask(1, "initialize", states.key(), 1, 0)
    coordinator = states.leader_of(states.key())
    others = [node_id for node_id in (1, 2, 3) if node_id != coordinator]
    states.cluster.sim.pause(f"node{coordinator}")
    states.ask(others[0], "write", states.key(), 1, 0, 1, FINISHED, within_ms=30_000)
    states.cluster.sim.resume(f"node{coordinator}")
    assert states.ask(coordinator, "read", states.key(), 0).start_offset == 1


def test_a_call_without_a_coordinator_fails_in_the_end(states: ShareStates) -> None:
    states.ask(1, "initialize", states.key(), 1, 0)
    coordinator = states.leader_of(states.key())
    others = [node_id for node_id in (1, 2, 3) if node_id != coordinator]
    for node_id in (coordinator, others[0]):
        states.cluster.nodes[node_id].kill()
    began_ms = states.cluster.sim.clock.now_ms
    with pytest.raises(Refused) as refused:
        states.ask(others[1], "write", states.key(), 1, 4, 1, FINISHED, within_ms=40_000)
    assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert 10_000 <= states.cluster.sim.clock.now_ms - began_ms <= 21_000


def test_a_member_is_assigned_partitions_whose_coordinators_are_elsewhere(cluster: NodeCluster) -> None:
    topic = cluster.create(1, 6)
    found = cluster.ask(1, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["crew"]), 6)
    coordinator = found.coordinators[0].node_id
    member_id = "11111111-1111-1111-1111-111111111111"
    epoch, assigned = 0, dict[UUID, list[int]]()
    for _ in range(200):
        request = m.ShareGroupHeartbeatRequest(
            group_id="crew",
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=["pond"] if epoch == 0 else None,
        )
        reply = cluster.ask(coordinator, request, 1)
        if reply.error_code == ErrorCode.NONE:
            epoch = reply.member_epoch
            if reply.assignment is not None and reply.assignment.topic_partitions:
                assigned = {each.topic_id: each.partitions for each in reply.assignment.topic_partitions}
                break
        cluster.sim.run_for(50)
    assert assigned == {topic.id: [0, 1, 2, 3, 4, 5]}
