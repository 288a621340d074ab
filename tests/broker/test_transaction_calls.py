"""Permission to write in a transaction, and offsets that wait for its end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.broker.serving.pieces import PIECE_ITEMS
from millpond.wire import messages as m


class TransactionalClient:
    def __init__(self, server: Any) -> None:
        self.server = server
        server.create("pond")
        self.caller = server.connect()
        self.ask(m.FindCoordinatorRequest(key="g", key_type=0), 3)
        reply = self.ask(m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000), 4)
        self.id, self.epoch = reply.producer_id, reply.producer_epoch

    def ask(self, request: m.Message, version: int) -> Any:
        return self.caller.ask(request, version, within_ms=5000)

    def add_group(self) -> int:
        request = m.AddOffsetsToTxnRequest(
            transactional_id="tx", producer_id=self.id, producer_epoch=self.epoch, group_id="g"
        )
        return self.ask(request, 3).error_code

    def commit(self, offset: int, version: int = 3) -> int:
        partition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topic = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="pond", partitions=[partition])
        request = m.TxnOffsetCommitRequest(
            transactional_id="tx", group_id="g", producer_id=self.id, producer_epoch=self.epoch, topics=[topic]
        )
        return self.ask(request, version).topics[0].partitions[0].error_code

    def commit_by_id(self, **offsets_of: dict[int, int]) -> m.TxnOffsetCommitResponse:
        """`pond={0: 5}` is offset 5 for partition 0. A topic that does not exist has the id 99."""
        kind = m.TxnOffsetCommitRequest
        known = self.server.broker.image.topics
        topics = [
            kind.TxnOffsetCommitRequestTopic(
                topic_id=known[name].id if name in known else UUID(int=99),
                partitions=[
                    kind.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in offsets_of.items()
        ]
        request = kind(
            transactional_id="tx", group_id="g", producer_id=self.id, producer_epoch=self.epoch, topics=topics
        )
        reply = self.ask(request, 6)
        assert [each.topic_id for each in reply.topics] == [each.topic_id for each in topics]
        return reply

    def end(self, committed: bool) -> int:
        request = m.EndTxnRequest(
            transactional_id="tx", producer_id=self.id, producer_epoch=self.epoch, committed=committed
        )
        code = self.ask(request, 3).error_code
        self.server.run(1000)
        return code

    def committed(self, *, stable: bool = False) -> tuple[int, int]:
        """The group's committed offset, and the error that it comes with."""
        topics = [m.OffsetFetchRequest.OffsetFetchRequestTopics(name="pond", partition_indexes=[0])]
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=topics)
        reply = self.ask(m.OffsetFetchRequest(groups=[group], require_stable=stable), 8)
        (partition,) = reply.groups[0].topics[0].partitions
        return partition.committed_offset, partition.error_code


@pytest.fixture
def client(server: Any) -> TransactionalClient:
    return TransactionalClient(server)


def test_offsets_count_once_the_transaction_is_committed(client: TransactionalClient) -> None:
    assert client.add_group() == 0
    assert client.commit(5) == 0
    assert client.committed() == (-1, 0)
    assert client.committed(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert client.end(committed=True) == 0
    assert client.committed(stable=True) == (5, 0)


def test_offsets_of_an_aborted_transaction_never_were(client: TransactionalClient) -> None:
    client.add_group()
    client.commit(5)
    assert client.end(committed=False) == 0
    assert client.committed(stable=True) == (-1, 0)


def test_the_group_must_be_part_of_the_transaction(client: TransactionalClient) -> None:
    assert client.commit(5) in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)
    assert client.committed(stable=True) == (-1, 0)


def test_newer_clients_take_the_group_along(client: TransactionalClient) -> None:
    assert client.commit(5, version=5) == 0
    assert client.end(committed=True) == 0
    assert client.committed() == (5, 0)


def test_version_6_names_topics_by_id(client: TransactionalClient) -> None:
    reply = client.commit_by_id(nowhere={0: 1, 1: 1}, pond={0: 5, 7: 1})
    assert [[each.error_code for each in topic.partitions] for topic in reply.topics] == [
        [ErrorCode.UNKNOWN_TOPIC_ID] * 2,
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert client.end(committed=True) == 0
    assert client.committed() == (5, 0)


def test_version_6_answers_a_request_in_slices_as_one(client: TransactionalClient) -> None:
    count = 3 * PIECE_ITEMS
    reply = client.commit_by_id(pond=dict.fromkeys(range(count), 5), nowhere=dict.fromkeys(range(count), 5))
    pond, nowhere = ([(each.partition_index, each.error_code) for each in topic.partitions] for topic in reply.topics)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert pond == [(0, ErrorCode.NONE), *((index, unknown) for index in range(1, count))]
    assert nowhere == [(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in range(count)]
    assert client.end(committed=True) == 0
    assert client.committed() == (5, 0)


def test_version_6_refuses_a_producer_that_is_fenced_for_each_topic_id(client: TransactionalClient) -> None:
    client.commit_by_id(pond={0: 5})
    client.epoch -= 1
    reply = client.commit_by_id(pond={0: 6}, nowhere={0: 6})
    codes = {each.error_code for topic in reply.topics for each in topic.partitions}
    assert codes <= {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
    assert codes


def test_pending_offsets_survive_a_power_cut_and_the_commit_after_it(client: TransactionalClient) -> None:
    client.add_group()
    client.commit(7)
    client.server.node.crash()
    assert client.server.node.start()
    client.caller = client.server.connect()
    assert client.committed(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert client.end(committed=True) == 0
    assert client.committed(stable=True) == (7, 0)
