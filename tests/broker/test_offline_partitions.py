"""A partition that is not open here still exists: no response says that it does not."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


@pytest.fixture
def caller(server: Any) -> Any:
    """A topic with two partitions; the second one's log cannot be opened."""
    server.create("pond", 2)
    partitions = server.broker.partitions
    partitions.remove(partitions.get("pond", 1))
    return server.connect()


def codes_of_produce(caller: Any, make_batch: Any, index: int) -> int:
    data = m.ProduceRequest.PartitionProduceData(index=index, records=make_batch(b"v"))
    topic = m.ProduceRequest.TopicProduceData(name="pond", partition_data=[data])
    reply = caller.ask(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    return reply.responses[0].partition_responses[0].error_code


def codes_of_fetch(caller: Any, _: Any, index: int) -> int:
    partition = m.FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
    topic = m.FetchRequest.FetchTopic(topic="pond", partitions=[partition])
    reply = caller.ask(m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[topic]), 11)
    return reply.responses[0].partitions[0].error_code


def codes_of_list_offsets(caller: Any, _: Any, index: int) -> int:
    partition = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
    topic = m.ListOffsetsRequest.ListOffsetsTopic(name="pond", partitions=[partition])
    return caller.ask(m.ListOffsetsRequest(topics=[topic]), 5).topics[0].partitions[0].error_code


def codes_of_delete_records(caller: Any, _: Any, index: int) -> int:
    partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=0)
    topic = m.DeleteRecordsRequest.DeleteRecordsTopic(name="pond", partitions=[partition])
    return caller.ask(m.DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2).topics[0].partitions[0].error_code


def codes_of_epochs(caller: Any, _: Any, index: int) -> int:
    kind = m.OffsetForLeaderEpochRequest
    partition = kind.OffsetForLeaderPartition(partition=index, leader_epoch=0)
    topic = kind.OffsetForLeaderTopic(topic="pond", partitions=[partition])
    return caller.ask(kind(topics=[topic]), 4).topics[0].partitions[0].error_code


def codes_of_producers(caller: Any, _: Any, index: int) -> int:
    topic = m.DescribeProducersRequest.TopicRequest(name="pond", partition_indexes=[index])
    return caller.ask(m.DescribeProducersRequest(topics=[topic]), 0).topics[0].partitions[0].error_code


@pytest.mark.parametrize(
    "code_of",
    [
        codes_of_produce,
        codes_of_fetch,
        codes_of_list_offsets,
        codes_of_delete_records,
        codes_of_epochs,
        codes_of_producers,
    ],
)
def test_offline_is_not_unknown(code_of: Any, caller: Any, make_batch: Any) -> None:
    assert code_of(caller, make_batch, 0) == ErrorCode.NONE
    assert code_of(caller, make_batch, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(caller, make_batch, 2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
