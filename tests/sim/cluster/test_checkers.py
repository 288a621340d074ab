"""What the inspector of a cluster finds, shown nodes that break a promise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millpond.base.ids import LeaderEpoch, NodeId, TopicPartition
from millpond.metadata.image import Image, Partition, Topic
from millpond.sim.cluster import checkers
from millpond.sim.cluster.checkers import Inspector
from millpond.sim.history.records import History
from millpond.wire.records import Record, encode_batch

TOPIC_ID = UUID(int=7)


class Log:
    """Batches of one record each, as (leader epoch, value)."""

    start_offset = 0
    failed = None

    def __init__(self, *batches: tuple[int, bytes]) -> None:
        self.batches = list(batches)

    @property
    def end_offset(self) -> int:
        return len(self.batches)

    def read_batches(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for at in range(offset, len(self.batches)):
            epoch, value = self.batches[at]
            batch = bytearray(encode_batch([Record(0, 0, None, value)]))
            batch[:8] = at.to_bytes(8, "big")
            batch[12:16] = epoch.to_bytes(4, "big")
            data += batch
        return data


class Cluster:
    """Nodes of which only what the inspector looks at is there."""

    def __init__(self, count: int = 3) -> None:
        self.history = History()
        self.image = Image()
        self.nodes = {node_id: self._node(node_id) for node_id in range(1, count + 1)}
        topic = Topic("t", TOPIC_ID, [])
        replicas = tuple(self.nodes)
        topic.partitions.append(
            Partition(replicas=replicas, isr=replicas, leader=NodeId(1), leader_epoch=LeaderEpoch(1))
        )
        self.image.topics["t"] = self.image.topics_by_id[TOPIC_ID] = topic

    def running(self) -> list[tuple[int, Any]]:
        """None of them has a lease: `test_leases.py` looks at those, in whole clusters."""
        return []

    def _node(self, node_id: int) -> Any:
        partitions: dict[int, Any] = {}
        controller = SimpleNamespace(is_active=node_id == 1, leader_epoch=3, applied_offset=10, image=self.image)
        broker = SimpleNamespace(controller=controller, partitions=Partitions(partitions), image=self.image)
        return SimpleNamespace(is_up=True, incarnation=1, broker=broker)

    def put(self, node_id: int, log: Log, *, leads: bool = False, committed: int = 0, epoch: int = 1) -> Any:
        replica = SimpleNamespace(
            name=TopicPartition("t", 0),
            topic_id=TOPIC_ID,
            log=log,
            is_leader=leads,
            leader_epoch=epoch,
            committed_offset=committed,
        )
        self.nodes[node_id].broker.partitions.put(replica)
        return replica

    def note(self, line: str) -> None: ...


class Partitions:
    def __init__(self, replicas: dict[int, Any]) -> None:
        self._replicas = replicas

    def __iter__(self) -> Any:
        return iter(self._replicas.values())

    def put(self, replica: Any) -> None:
        self._replicas[0] = replica

    def by_id(self, topic_id: UUID, index: int) -> Any:
        return self._replicas.get(index)


A, B, C, X = (1, b"a"), (1, b"b"), (1, b"c"), (2, b"x")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def inspector(cluster: Cluster) -> Inspector:
    injector = SimpleNamespace(rot=None, may_have_lost=lambda _: False)
    return Inspector(cluster, injector)  # type: ignore[arg-type]


def found(cluster: Cluster) -> list[str]:
    return [finding.partition(":")[0] for finding in cluster.history.violations]


def test_replicas_that_follow_are_well(cluster: Cluster, inspector: Inspector) -> None:
    leader = cluster.put(1, Log(A, B, C), leads=True, committed=2)
    cluster.put(2, Log(A, B))
    cluster.put(3, Log(A, B, C))
    inspector.look()
    leader.log.batches.append((1, b"d"))
    leader.committed_offset = 2
    inspector.look()
    assert not found(cluster)


def test_what_a_replica_had_before_it_began_anew_is_not_held_against_it(
    cluster: Cluster, inspector: Inspector
) -> None:
    cluster.put(1, Log(A, B, C), leads=True, committed=2)
    behind = cluster.put(2, Log(A, (0, b"never committed")))
    inspector.look()
    # All below offset 2 was deleted, and it was not cut back before.
    behind.log = Log(A, B, C)
    behind.log.start_offset = 2
    behind.is_leader, behind.leader_epoch, behind.committed_offset = True, 2, 3
    inspector.look()
    assert not found(cluster)


def test_two_leaders_in_one_epoch(cluster: Cluster, inspector: Inspector) -> None:
    cluster.put(1, Log(A), leads=True)
    cluster.put(2, Log(A), leads=True)
    inspector.look()
    assert found(cluster) == [checkers.TWO_LEADERS]


def test_two_controllers_in_one_epoch(cluster: Cluster, inspector: Inspector) -> None:
    cluster.nodes[2].broker.controller.is_active = True
    inspector.look()
    assert found(cluster) == [checkers.TWO_CONTROLLERS]


def test_images_that_differ_at_one_offset(cluster: Cluster, inspector: Inspector) -> None:
    cluster.nodes[3].broker.controller.image = Image()
    inspector.look()
    assert found(cluster) == [checkers.METADATA_DIFFERS]


def test_one_name_and_two_batches(cluster: Cluster, inspector: Inspector) -> None:
    cluster.put(1, Log(A, B), leads=True)
    cluster.put(2, Log(A, C))
    inspector.look()
    assert found(cluster) == [checkers.SAME_NAME_OTHER_BATCH]


def test_a_committed_batch_that_another_leader_has_not(cluster: Cluster, inspector: Inspector) -> None:
    cluster.put(1, Log(A, B), leads=True, committed=2)
    inspector.look()
    cluster.nodes[1].is_up = False
    cluster.put(2, Log(A, X), leads=True, committed=2, epoch=2)
    inspector.look()
    assert found(cluster) == [checkers.VISIBLE_CHANGED]


def test_a_log_that_was_exchanged_between_two_looks(cluster: Cluster, inspector: Inspector) -> None:
    leader = cluster.put(1, Log(A, B), leads=True, committed=1)
    inspector.look()
    leader.log.batches[1:] = [X, (2, b"y")]
    leader.leader_epoch, leader.committed_offset = 2, 3
    inspector.look()
    inspector.look()
    assert not found(cluster), "what was not committed may go"
    leader.log.batches[:] = [(3, b"z"), (3, b"z"), (3, b"z")]
    leader.leader_epoch = 3
    inspector.look()
    inspector.look()
    assert checkers.VISIBLE_CHANGED in found(cluster)


def test_a_member_of_the_isr_that_lacks_records(cluster: Cluster, inspector: Inspector) -> None:
    cluster.put(1, Log(A, B), leads=True, committed=2)
    cluster.put(2, Log(A))
    inspector.look()
    assert found(cluster) == [checkers.TRUSTED_LACKS_RECORDS]


def test_a_leader_that_is_not_in_sync(cluster: Cluster, inspector: Inspector) -> None:
    topic = cluster.image.topics["t"]
    topic.partitions[0] = Partition(
        replicas=(1, 2, 3), isr=(2, 3), leader=NodeId(1), leader_epoch=LeaderEpoch(1), partition_epoch=4
    )
    cluster.image.brokers[1] = SimpleNamespace(id=1)  # type: ignore[assignment]
    cluster.nodes[1].broker.controller.applied_offset = -1
    for node_id in (2, 3):
        cluster.nodes[node_id].broker.controller.applied_offset = -1
    inspector.look()
    assert found(cluster) == [checkers.STRANGER_TRUSTED]


def test_a_high_watermark_that_falls(cluster: Cluster, inspector: Inspector) -> None:
    leader = cluster.put(1, Log(A, B), leads=True, committed=2)
    inspector.look()
    leader.committed_offset = 1
    inspector.look()
    assert found(cluster) == [checkers.HIGH_WATERMARK_FELL]
