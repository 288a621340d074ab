"""A coordinator on another node gets one request a turn for all that is pending; no response is no permission."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.base.ids import TopicPartition
from millpond.base.later import Later
from millpond.broker.coordination.coordination import Producer
from millpond.broker.coordination.permissions import AGAIN_MS, AGAIN_MS_MAX, Permissions
from millpond.broker.peers.requester import RequestLost
from millpond.metadata.image import Broker, Image
from millpond.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from millpond.sim.world.world import SimWorld
from millpond.wire import messages as m

B, C = 2, 3
STATE = UUID(int=11)
FIRST, SECOND = Producer(7, 0), Producer(8, 0)


def fake_broker(node_id: int) -> Broker:
    return Broker(node_id, UUID(int=node_id), 1, (), None, fenced=False)  # type: ignore[arg-type]


class PermissionNode:
    """Ids that begin with `b` are coordinated by node 2, others by node 3."""

    def __init__(self) -> None:
        self.sim = SimWorld(1)
        self.clock = self.sim.start("node").clock
        self.image = Image()
        self.image.replay(TopicRecord("__transaction_state", STATE))
        for index, leader in enumerate((B, C)):
            self.image.brokers[leader] = fake_broker(leader)
            self.image.replay(PartitionRecord(index, STATE, (leader,), (leader,), leader=leader))
        self.transactions = SimpleNamespace(
            topic="__transaction_state", partition_of=lambda name: int(not name.startswith("b"))
        )
        self.permission_peers = self
        self.asked: list[tuple[int, m.AddPartitionsToTxnRequest, Later[Any]]] = []
        self.heard: list[Any] = []
        self.permissions = Permissions(self)  # type: ignore[arg-type]

    def ask(self, node_id: int, request: m.AddPartitionsToTxnRequest, version: int, timeout_ms: int) -> Later[Any]:
        assert version == 5
        later: Later[Any] = Later()
        self.asked.append((node_id, request, later))
        return later

    def want(self, name: str, index: int, producer: Producer = FIRST, *, implicit: bool = True) -> None:
        response = self.permissions.ask(name, producer, TopicPartition("pond", index), implicit=implicit)
        said = f"{name} {index}"
        response.then(
            lambda code: self.heard.append(f"{said}: {code.name}"),
            lambda failure: self.heard.append(f"{said}: refused {failure.code.name}"),  # type: ignore[attr-defined]
        )

    def turn(self) -> list[str]:
        """The requests of this turn of the loop, with the nodes they go to."""
        self.sim.run_for(0)
        return [
            f"{node_id}: "
            + ", ".join(
                f"{each.transactional_id} {'verify' if each.verify_only else 'add'} {each.topics[0].partitions}"
                for each in request.transactions
            )
            for node_id, request, _ in self.asked
        ]

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> list[str]:
        """Answer everything with this, and return the results."""
        asked, self.asked = self.asked, []
        for _, request, later in asked:
            results = [
                m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=code
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ]
            later.finish(m.AddPartitionsToTxnResponse(results_by_transaction=results))
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
def host() -> PermissionNode:
    return PermissionNode()


def test_one_request_for_each_coordinator_and_turn(host: PermissionNode) -> None:
    for name, index, producer in (("b1", 0, FIRST), ("b1", 1, FIRST), ("b2", 0, SECOND), ("c", 5, SECOND)):
        host.want(name, index, producer)
    assert host.turn() == ["2: b1 add [0, 1], b2 add [0]", "3: c add [5]"]
    assert host.answer() == ["b1 0: NONE", "b1 1: NONE", "b2 0: NONE", "c 5: NONE"]
    host.want("b1", 2)
    assert host.turn() == ["2: b1 add [2]"]


def test_an_id_stands_once_in_a_request_and_each_producer_gets_its_own_answer(host: PermissionNode) -> None:
    host.want("b", 0)
    host.want("b", 0, Producer(7, 1))
    host.want("b", 1, implicit=False)
    assert host.turn() == ["2: b add [0]", "2: b add [0]", "2: b verify [1]"]
    assert host.answer() == ["b 0: NONE", "b 0: NONE", "b 1: NONE"]


def test_two_who_want_the_same_hear_the_same(host: PermissionNode) -> None:
    host.want("b", 0)
    host.want("b", 0)
    assert host.turn() == ["2: b add [0]"]
    assert host.answer(ErrorCode.INVALID_PRODUCER_EPOCH) == ["b 0: INVALID_PRODUCER_EPOCH"] * 2


def test_the_end_of_the_last_transaction_is_waited_for_and_not_for_long(host: PermissionNode) -> None:
    host.want("b", 0)
    host.turn()
    assert host.answer(ErrorCode.CONCURRENT_TRANSACTIONS) == []
    host.sim.run_for(AGAIN_MS)
    assert host.turn() == ["2: b add [0]"]
    assert host.answer() == ["b 0: NONE"]
    host.want("b", 1)
    replies: list[str] = []
    for _ in range(AGAIN_MS_MAX // AGAIN_MS + 1):
        host.turn()
        replies += host.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        host.sim.run_for(AGAIN_MS)
    assert replies == ["b 1: CONCURRENT_TRANSACTIONS"]
    assert host.turn() == []


def test_a_coordinator_that_moves_meanwhile_is_asked_where_it_is(host: PermissionNode) -> None:
    host.want("b", 0)
    host.turn()
    host.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    host.image.replay(PartitionChangeRecord(0, STATE, leader=C))
    host.sim.run_for(AGAIN_MS)
    assert host.turn() == ["3: b add [0]"]


def test_silence_and_half_an_answer_are_refusals(host: PermissionNode) -> None:
    host.want("b", 0)
    host.turn()
    host.asked.pop()[2].fail(RequestLost("cut"))
    host.want("b", 1)
    host.turn()
    host.asked.pop()[2].finish(m.AddPartitionsToTxnResponse(results_by_transaction=[]))
    assert host.answer() == ["b 0: refused COORDINATOR_NOT_AVAILABLE", "b 1: refused COORDINATOR_NOT_AVAILABLE"]


def test_without_a_coordinator_no_request_is_sent(host: PermissionNode) -> None:
    host.image.replay(PartitionChangeRecord(0, STATE, leader=-1))
    host.want("b", 0)
    assert host.turn() == []
    assert host.answer() == ["b 0: refused COORDINATOR_NOT_AVAILABLE"]


def test_a_bug_is_raised() -> None:
    host = PermissionNode()
    host.want("b", 0)
    host.turn()
    with pytest.raises(ZeroDivisionError):
        host.asked.pop()[2].fail(ZeroDivisionError())
