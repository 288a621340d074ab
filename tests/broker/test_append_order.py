"""A connection's transactional writes are appended in the order in which they arrived."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.broker.coordination.append_order import AppendOrder
from millpond.broker.coordination.permissions import Permissions
from millpond.sim.clients.client import SimClient
from millpond.sim.cluster.cluster import SimCluster
from millpond.sim.history.records import History
from millpond.sim.node import PORT
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m
from millpond.wire.records import Record, encode_batch

PRODUCE_VERSION = 12
"""From this version on, brokers add partitions to transactions implicitly."""


class Writes:
    """Writes that share a key; the test grants their permissions."""

    def __init__(self) -> None:
        self.order = AppendOrder()
        self.permissions: dict[str, Later[str]] = {}
        self.results: dict[str, Later[str]] = {}
        self.appended: list[str] = []

    def write(self, name: str, key: str = "tx") -> None:
        permission = self.permissions[name] = Later()
        self.results[name] = self.order.append(key, permission, self._append)

    def _append(self, name: str) -> Later[str]:
        self.appended.append(name)
        return done(name)

    def permit(self, *names: str) -> list[str]:
        for name in names:
            self.permissions[name].finish(name)
        return self.appended


@pytest.fixture
def writes() -> Writes:
    return Writes()


def test_a_write_waits_for_those_before_it(writes: Writes) -> None:
    for name in "abc":
        writes.write(name)
    assert writes.permit("c") == []
    assert writes.permit("b") == []
    assert writes.permit("a") == ["a", "b", "c"]
    assert not writes.order.is_waiting("tx")


def test_other_keys_do_not_wait(writes: Writes) -> None:
    writes.write("a")
    writes.write("b", key="other")
    assert writes.permit("b") == ["b"]
    assert (writes.order.is_waiting("tx"), writes.order.is_waiting("other")) == (True, False)


def test_a_failed_or_cancelled_write_does_not_block_the_next(writes: Writes) -> None:
    for name in "abc":
        writes.write(name)
    writes.permit("c")
    writes.results["b"].cancel()
    failures: list[Exception] = []
    writes.results["a"].then(lambda _: None, failures.append)
    writes.permissions["a"].fail(Refused(ErrorCode.INVALID_TXN_STATE))
    assert (writes.appended, len(failures)) == (["c"], 1)
    assert writes.permissions["b"].ended
    assert not writes.order.is_waiting("tx")


def test_a_write_that_is_permitted_already_waits_as_well(writes: Writes) -> None:
    writes.write("a")
    writes.order.append("tx", done("b"), writes._append)
    assert writes.appended == []
    assert writes.permit("a") == ["a", "b"]


def test_a_long_queue_needs_no_deep_stack(writes: Writes) -> None:
    names = [str(number) for number in range(5_000)]
    for name in names:
        writes.write(name)
    assert writes.permit(*reversed(names)) == names


class TransactionCluster:
    """Three nodes: one leads all partitions of a topic, another coordinates the transaction, the third the group."""

    def __init__(self) -> None:
        self.sim = SimWorld(7)
        settings = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
        self.cluster = SimCluster(self.sim, 3, History(), settings)
        for node_id in self.cluster.nodes:
            assert self.cluster.start(node_id)
        assert self.sim.run_until(self.is_founded, within_ms=30_000)
        self.clients = {
            node_id: SimClient(self.sim.network, f"node{node_id}", PORT, "client", timeout_ms=20_000)
            for node_id in self.cluster.nodes
        }
        self.create()
        self.leader = 1
        self.find(1, "tx")
        self.find(0, "group")
        self.name = next(name for name in map("tx{}".format, range(100)) if self.find(1, name) != self.leader)
        self.coordinator = self.find(1, self.name)
        self.group = next(
            name for name in map("group{}".format, range(100)) if self.find(0, name) != self.coordinator
        )
        self.group_node = self.find(0, self.group)
        request = m.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        reply = self.ask(self.coordinator, request, 5)
        assert reply.error_code == 0
        self.producer = reply.producer_id, reply.producer_epoch

    def is_founded(self) -> bool:
        image = self.cluster.image
        return image is not None and all(map(image.is_active, self.cluster.nodes))

    def create(self) -> None:
        assignments = [
            m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=[1])
            for index in range(3)
        ]
        topic = m.CreateTopicsRequest.CreatableTopic(
            name="pond", num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        reply = self.ask(1, m.CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 7)
        assert reply.topics[0].error_code == 0
        self.topic_id = reply.topics[0].topic_id

    def find(self, kind: int, name: str) -> int:
        request = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        result: list[int] = []

        def is_found() -> bool:
            (coordinator,) = self.ask(1, request, 4).coordinators
            result.append(coordinator.node_id)
            return not coordinator.error_code

        assert any(is_found() or self.sim.run_for(100) for _ in range(100))
        return result[-1]

    def ask(self, node_id: int, request: m.Message, version: int) -> Any:
        (reply,) = self.pipeline(node_id, version, request)
        return reply

    def pipeline(self, node_id: int, version: int, *requests: m.Message) -> list[Any]:
        """Send all requests on one connection, so that they are read at once, and return the replies."""
        replies: list[Any] = []
        self.cluster.pause(node_id)
        for request in requests:
            self.clients[node_id].send(request, version, replies.append)
        self.sim.run_for(20)
        self.cluster.resume(node_id)
        assert self.sim.run_until(lambda: len(replies) == len(requests), within_ms=20_000)
        return replies

    def produce(self, **sequences: int) -> m.ProduceRequest:
        """`p0=3` is one record with sequence 3 for partition 0."""
        kind = m.ProduceRequest
        parts = [
            kind.PartitionProduceData(index=int(name[1:]), records=self.batch(sequence))
            for name, sequence in sequences.items()
        ]
        return self.request(parts)

    def request(self, parts: list[Any]) -> m.ProduceRequest:
        topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=parts)
        return m.ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=5_000, topic_data=[topic])

    def batch(self, sequence: int) -> bytes:
        producer_id, epoch = self.producer
        records = [Record(0, 0, None, b"value", ())]
        return encode_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )

    def commit(self, offset: int) -> m.TxnOffsetCommitRequest:
        kind = m.TxnOffsetCommitRequest
        part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        producer_id, epoch = self.producer
        return kind(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[kind.TxnOffsetCommitRequestTopic(name="pond", topic_id=self.topic_id, partitions=[part])],
        )

    def end(self) -> None:
        producer_id, epoch = self.producer
        request = m.EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=True
        )
        reply = self.ask(self.coordinator, request, 5)
        assert reply.error_code == 0
        self.producer = reply.producer_id, reply.producer_epoch


def codes(reply: m.ProduceResponse) -> dict[int, int]:
    return {part.index: part.error_code for topic in reply.responses for part in topic.partition_responses}


@pytest.fixture
def nodes() -> TransactionCluster:
    return TransactionCluster()


def delay_permission(patch: pytest.MonkeyPatch, nodes: TransactionCluster, *, delays_ms: list[int]) -> None:
    """Delay the coordinator's responses by this much, keeping their order."""
    ask = Permissions.ask

    def delayed(self: Permissions, *args: Any, **named: Any) -> Later[ErrorCode]:
        delay_ms = delays_ms.pop(0) if delays_ms else 0

        def rest(code: ErrorCode) -> Later[ErrorCode]:
            later: Later[ErrorCode] = Later()
            nodes.sim.clock.call_later(delay_ms, lambda: later.finish(code))
            return later

        return ask(self, *args, **named).chain(rest)

    patch.setattr(Permissions, "ask", delayed)


def test_a_batch_does_not_overtake_one_whose_request_waits_for_another_partition(nodes: TransactionCluster) -> None:
    first, second = nodes.pipeline(nodes.leader, PRODUCE_VERSION, nodes.produce(p0=0, p1=0), nodes.produce(p0=1))
    assert (codes(first), codes(second)) == ({0: 0, 1: 0}, {0: 0})
    nodes.end()


def test_a_batch_does_not_overtake_one_whose_permission_is_asked_for_again(
    nodes: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_permission(monkeypatch, nodes, delays_ms=[60, 0, 20])
    requests = [nodes.produce(p0=0), nodes.produce(p0=1, p1=0), nodes.produce(p1=1)]
    replies = nodes.pipeline(nodes.leader, PRODUCE_VERSION, *requests)
    assert [codes(each) for each in replies] == [{0: 0}, {0: 0, 1: 0}, {1: 0}]


def test_a_batch_waits_although_its_own_partition_is_permitted(
    nodes: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes(nodes.ask(nodes.leader, nodes.produce(p0=0), PRODUCE_VERSION)) == {0: 0}
    delay_permission(monkeypatch, nodes, delays_ms=[60])
    replies = nodes.pipeline(nodes.leader, PRODUCE_VERSION, nodes.produce(p0=1, p1=0), nodes.produce(p0=2))
    assert [codes(each) for each in replies] == [{0: 0, 1: 0}, {0: 0}]


def test_a_request_in_pieces_waits_for_its_predecessor(
    nodes: TransactionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_permission(monkeypatch, nodes, delays_ms=[60, 0])
    kind = m.ProduceRequest
    # This many nonexistent partitions make the request large enough to be handled in slices.
    parts = [kind.PartitionProduceData(index=index, records=b"") for index in range(10, 1_200)]
    long = nodes.request([kind.PartitionProduceData(index=0, records=nodes.batch(1)), *parts])
    first, second, third = nodes.pipeline(
        nodes.leader, PRODUCE_VERSION, nodes.produce(p0=0, p1=0), long, nodes.produce(p0=2)
    )
    assert (codes(first), codes(second)[0], codes(third)) == ({0: 0, 1: 0}, 0, {0: 0})


@pytest.mark.parametrize("version", [5, 6])
def test_an_older_offset_does_not_overwrite_a_newer_one(
    nodes: TransactionCluster, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    delay_permission(monkeypatch, nodes, delays_ms=[60, 0])
    replies = nodes.pipeline(nodes.group_node, version, nodes.commit(5), nodes.commit(9))
    assert [each.topics[0].partitions[0].error_code for each in replies] == [0, 0]
    nodes.end()
    topics = [m.OffsetFetchRequest.OffsetFetchRequestTopics(name="pond", partition_indexes=[0])]
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=nodes.group, topics=topics)
    reply = nodes.ask(nodes.group_node, m.OffsetFetchRequest(groups=[group], require_stable=True), 8)
    assert reply.groups[0].topics[0].partitions[0].committed_offset == 9
