"""Transactions v2 (KIP-890) request by request: the broker adds partitions implicitly, every end bumps the epoch."""

from __future__ import annotations

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m
from support.raw import Raw, produce_request
from support.raw_transactions import (
    NODE_SETTINGS,
    READ_UNCOMMITTED,
    RawProducer,
    committed_values,
    end_offset,
    patiently,
    producers_of,
    wait_for_state,
    write_marker,
)

SETTINGS = NODE_SETTINGS


@pytest.fixture
def producer(raw, made):
    return RawProducer(raw, made, v2=True).begin_session()


def test_the_broker_announces_transactions_v2(raw):
    reply = raw.call(m.ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
    supported = {each.name: each.max_version for each in reply.supported_features}
    agreed = {each.name: each.max_version_level for each in reply.finalized_features}
    assert supported["transaction.version"] == agreed["transaction.version"] == 2
    assert reply.finalized_features_epoch >= 0
    versions = {each.api_key: each.max_version for each in reply.api_keys}
    assert versions[m.ProduceRequest.API_KEY] >= 12
    assert versions[m.EndTxnRequest.API_KEY] >= 5
    assert versions[m.TxnOffsetCommitRequest.API_KEY] >= 5


@pytest.mark.smoke
def test_every_end_raises_the_epoch(raw, made, producer):
    known, epoch = producer.id, producer.epoch
    for number in range(1, 4):
        producer.send(made, 0, b"%d" % number)
        producer.end(committed=number != 2)
        assert (producer.id, producer.epoch) == (known, epoch + number)
    wait_for_state(raw, made, "CompleteCommit")
    assert committed_values(raw, made) == [b"1", b"3"]
    assert producers_of(raw, made)[known].producer_epoch == epoch + 3


def test_a_batch_that_comes_late_does_not_join_the_next_transaction(raw, made, producer):
    """The bug that v2 fixes: a write of a transaction that was aborted meanwhile must not hang forever."""
    late = producer.twin()
    delayed = late.batch(made, 1, b"too late")
    producer.send(made, 0, b"x")
    producer.abort()
    wait_for_state(raw, made, "CompleteAbort")
    assert late.produce(made, 1, delayed).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_offset(raw, made, READ_UNCOMMITTED) == 2
    assert producers_of(raw, made, 1) == {}


def test_a_marker_that_comes_late_does_not_end_the_next_transaction(raw, made, producer):
    producer.send(made, 0, b"first")
    producer.commit()
    wait_for_state(raw, made, "CompleteCommit")
    producer.send(made, 0, b"second")
    late = write_marker(raw, producer.id, producer.epoch, True, made, version=2, transaction_version=2)
    assert late is ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_values(raw, made) == [b"first"]
    producer.abort()


def test_a_batch_that_is_sent_twice_is_written_once(made, producer):
    first = producer.batch(made, 0, b"once")
    replies = [producer.produce(made, 0, first) for _ in range(2)]
    assert [(each.error_code, each.base_offset) for each in replies] == [(0, 0), (0, 0)]
    producer.send(made, 0, b"then")
    assert producer.produce(made, 0, first).base_offset == 0
    producer.commit()


def test_one_request_writes_to_an_old_and_a_new_partition_of_the_transaction(node, made, producer):
    """The new partition has to wait for the coordinator; the bytes for the old one must stay intact meanwhile."""
    producer.send(made, 0, b"begins")
    kind = m.ProduceRequest
    with Raw(node.port) as busy:
        for number in range(30):
            producer.raw = busy
            values = [b"%d-%d" % (number, index) for index in range(20)]
            data = [
                kind.PartitionProduceData(index=index, records=producer.batch(made, index, *values))
                for index in (0, 1)
            ]
            request = kind(
                transactional_id=made,
                acks=-1,
                timeout_ms=5000,
                topic_data=[kind.TopicProduceData(name=made, partition_data=data)],
            )
            sent = [busy.send(request, 12)]
            # Whatever follows on the connection is read into the same buffer.
            sent += [busy.send(produce_request(made, 7, b"\xff" * 5000), 12) for _ in range(3)]
            replies = [busy.receive(kind.API_KEY, 12) for _ in sent]
            codes = {each.error_code for each in replies[0][1].responses[0].partition_responses}
            assert codes == {0}, codes
            producer.commit()
            patiently(lambda number=number: produced(producer, made, 0, b"begins %d" % number))


def produced(producer, topic, partition, value):
    """One write at the start of a transaction, which may have to wait for the end of the one before."""
    producer._sequences.clear()
    return producer.produce(topic, partition, producer.batch(topic, partition, value))


def test_brokers_ask_whether_a_partition_is_part_of_a_transaction(raw, made, producer):
    producer.send(made, 0, b"x")
    kind = m.AddPartitionsToTxnRequest

    def verify(partition, epoch):
        topics = [kind.AddPartitionsToTxnTopic(name=made, partitions=[partition])]
        one = kind.AddPartitionsToTxnTransaction(
            transactional_id=made, producer_id=producer.id, producer_epoch=epoch, verify_only=True, topics=topics
        )
        reply = raw.call(kind(transactions=[one]), 5).results_by_transaction[0]
        return reply.topic_results[0].results_by_partition[0].partition_error_code

    assert verify(0, producer.epoch) == ErrorCode.NONE
    assert verify(1, producer.epoch) == ErrorCode.TRANSACTION_ABORTABLE
    assert verify(0, producer.epoch + 1) == ErrorCode.PRODUCER_FENCED
    producer.abort()
