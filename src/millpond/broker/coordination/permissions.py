"""Permission to write inside a transaction whose coordinator is another node, requested in batches.

A producer's first batches arrive together, one per partition, so all questions of one turn of the loop go to each
node as one request. A request may contain a transactional id only once; so may a batch here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, failed
from millpond.base.named_tuple import NamedTuple
from millpond.broker.coordination.coordination import Producer
from millpond.broker.peers.requester import RequestLost
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.base.ids import TopicPartition
    from millpond.base.ports import Clock
    from millpond.broker.coordination.coordination import Coordination
    from millpond.broker.peers.peers import Peers
    from millpond.coordinators.transactions.shard import TransactionShard
    from millpond.metadata.image import Image

ADD_PARTITIONS_VERSION = 5
ASK_MS = 2_000

AGAIN_MS = 20
AGAIN_MS_MAX = 100
"""How often and how long to retry while the markers of the previous transaction are being written, as Kafka does."""


class PermissionNeeds(Protocol):
    """The parts of a broker that `Permissions` uses."""

    clock: Clock
    permission_peers: Peers
    transactions: Coordination[TransactionShard]

    @property
    def image(self) -> Image: ...


class _Question(NamedTuple):
    """A question to the coordinator about one producer."""

    transactional_id: str
    producer: Producer
    implicit: bool
    """Whether the coordinator should add the partitions to the transaction, rather than verify that it has them."""


_Batch = dict[_Question, dict["TopicPartition", list[Later[ErrorCode]]]]


class Permissions:
    def __init__(self, broker: PermissionNeeds) -> None:
        self._broker = broker
        self._batches: dict[int, list[_Batch]] = {}
        """The batches of this turn of the loop, by node."""

    def ask(
        self, transactional_id: str, producer: Producer, partition: TopicPartition, *, implicit: bool
    ) -> Later[ErrorCode]:
        """Ask the coordinator; the result fails with Refused if no coordinator answers."""
        question = _Question(transactional_id, producer, implicit)
        until_ms = self._broker.clock.monotonic_ms() + AGAIN_MS_MAX

        def go_on(code: ErrorCode) -> Later[ErrorCode]:
            later: Later[ErrorCode] = Later()
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS or self._broker.clock.monotonic_ms() >= until_ms:
                later.finish(code)
                return later
            later.expire_after(self._broker.clock, AGAIN_MS, lambda: later.finish(code))
            return later.chain(lambda _: self._ask(question, partition).chain(go_on))

        return self._ask(question, partition).chain(go_on)

    def _ask(self, question: _Question, partition: TopicPartition) -> Later[ErrorCode]:
        transactions = self._broker.transactions
        image, index = self._broker.image, transactions.partition_of(question.transactional_id)
        partition_of_id = image.partition(transactions.topic, index)
        if partition_of_id is None or not image.is_active(leader_id := partition_of_id.leader):
            return failed(Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the transaction's coordinator has no leader"))
        answer: Later[ErrorCode] = Later()
        batches = self._batches.get(leader_id)
        if batches is None:
            batches = self._batches[leader_id] = []
            self._broker.clock.call_soon(lambda: self._send(leader_id))
        for batch in batches:
            if question in batch or all(each.transactional_id != question.transactional_id for each in batch):
                batch.setdefault(question, {}).setdefault(partition, []).append(answer)
                break
        else:
            batches.append({question: {partition: [answer]}})
        return answer

    def _send(self, node_id: int) -> None:
        for batch in self._batches.pop(node_id):
            response = self._broker.permission_peers.ask(node_id, _request(batch), ADD_PARTITIONS_VERSION, ASK_MS)
            response.then(_Answers(batch).take, _Answers(batch).refuse)


class _Answers:
    """Distributes a response to the questions of its batch."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch

    def take(self, response: m.AddPartitionsToTxnResponse) -> None:
        codes = {
            (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for question, partitions in self._batch.items():
            for (topic, index), waiting in partitions.items():
                code = response.error_code or codes.get((question.transactional_id, topic, index))
                for later in waiting:
                    if code is None:
                        later.fail(Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator did not answer"))
                    else:
                        later.finish(ErrorCode(code))

    def refuse(self, failure: Exception) -> None:
        if not isinstance(failure, RequestLost):
            raise failure
        for partitions in self._batch.values():
            for waiting in partitions.values():
                for later in waiting:
                    later.fail(Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)))


def _request(batch: _Batch) -> m.AddPartitionsToTxnRequest:
    return m.AddPartitionsToTxnRequest(
        transactions=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer.id,
                producer_epoch=question.producer.epoch,
                verify_only=not question.implicit,
                topics=_topics(partitions),
            )
            for question, partitions in batch.items()
        ]
    )


def _topics(
    partitions: dict[TopicPartition, list[Later[ErrorCode]]],
) -> list[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    by_name: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_name.setdefault(topic, []).append(index)
    return [
        m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
        for name, indexes in by_name.items()
    ]
